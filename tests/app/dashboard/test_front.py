"""The front page where something has come between a PASS and what would be shipped: it may not say that that ships."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from written_history import POLICY, identity, write_run

import q36eval.app.shipping as shipping
from q36eval.app.dashboard.models.banner import banner, of_banner, sentence
from q36eval.app.dashboard.models.front import Declared, Front, Standing
from q36eval.app.dashboard.reading import Reader, forget, fronts
from q36eval.app.dashboard.views.overview import NEEDS
from q36eval.chat.declared import DeclaredTemplate
from q36eval.gate import Circumstances, Waiver, decide
from q36eval.gate.policy_file import read_policy
from q36eval.history import History, RunState
from q36eval.provenance import CHANGED
from q36eval.run.drift import keep_drifts
from tests.app.judged_runs import IDENTITY, REFERENCE, judge_run, open_history
from tests.commands import q36eval

Visit = Callable[..., Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def told(path: Path) -> dict[str, Front]:
    forget()
    known = fronts(Reader(path), datetime.now(UTC))
    return {row.row.of.branch: row for row in known.with_reports(known.all())}


def banners(app: Any) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


@pytest.mark.long
def test_a_pass_of_other_bytes_than_the_newest_run_began_is_stale(path: Path) -> None:
    history = History.open(path)
    about = {"family": "sandbox", "reference_identity": identity("a")}
    for branch, state in (("main", RunState.FINISHED), ("w4a16", RunState.INTERRUPTED), ("fp8-head", None)):
        write_run(history, branch, 0.05, 1)
        newer = history.start_run(branch=branch, identity=identity("e"), **about)
        if state is not None:
            history.finish_run(newer.id, state=state)
    write_run(history, "gptq-int4", 0.05, 1)
    history.start_run(branch="gptq-int4", identity=identity("d"), **about)
    write_run(history, "lost", 0.05, 1)
    for begun in (identity("e"), None):  # the last was stopped before it had read a file
        history.finish_run(
            history.start_run(
                family="sandbox", branch="lost", identity=begun, reference_identity=identity("a") if begun else None
            ).id,
            state=RunState.INTERRUPTED,
        )
    for name, field in (("template", "chat_template_sha256"), ("tokenizer", "tokenizer_sha256")):
        write_run(history, name, 0.05, 1)
        history.start_run(branch=name, identity=identity("d", **{field: "9" * 64}), **about)
    history.close()
    standing = {branch: row.standing for branch, row in told(path).items()}
    assert standing.pop("gptq-int4") is Standing.SHIP, "of the same bytes"
    assert set(standing.values()) == {Standing.STALE}


@pytest.mark.long
@pytest.mark.parametrize(("declared", "ships"), [("", True), ("c" * 64, True), ("9" * 64, False)])
def test_a_pass_by_another_template_than_the_family_declares_now_ships_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, ships: bool
) -> None:
    history = History.open(path)
    write_run(history, "fp8-head", 0.05, 1)
    history.close()
    shipped = shipping.shipped_rules("sandbox")
    assert shipped is not None
    branches = {"fp8-head": Declared(template=declared)}
    monkeypatch.setattr(shipping, "shipped_rules", lambda _: replace(shipped, branches=branches))
    (row,) = shipping.Fronts(shipping.OfHistory(History.open(path)), datetime.now(UTC)).all()
    assert row.ships is ships
    if not ships:
        assert "another chat template than the one that the family declares now" in row.worst.why


@pytest.mark.long
@pytest.mark.parametrize(("own", "ships"), [("9" * 64, False), ("c" * 64, True)])
def test_a_pass_by_an_own_template_that_the_family_does_not_declare_ships_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, own: str, ships: bool
) -> None:
    history = History.open(path)
    write_run(history, "fp8-head", 0.05, 1)
    history.close()
    declared = DeclaredTemplate(sha256=own, by="the family's file", reference_sha256="c" * 64)
    monkeypatch.setattr(shipping, "recorded_template", lambda provenance: declared)
    shipped = shipping.shipped_rules("sandbox")
    assert shipped is not None
    monkeypatch.setattr(shipping, "shipped_rules", lambda _: shipped)
    (row,) = shipping.Fronts(shipping.OfHistory(History.open(path)), datetime.now(UTC)).all()
    assert row.ships is ships
    if not ships:
        assert "of its own that the family's file does not declare" in row.worst.why


@pytest.mark.long
def test_a_run_whose_checkpoint_changed_is_not_offered_to_be_resumed(path: Path, visit: Visit) -> None:
    history = History.open(path)
    write_run(history, "main", 0.05, 1)
    same = {"identity": identity("d"), "reference_identity": identity("a")}
    newer = history.start_run(family="sandbox", branch="main", provenance={CHANGED: "a.safetensors changed"}, **same)
    history.finish_run(newer.id, state=RunState.INTERRUPTED)
    history.close()
    assert told(path)["main"].standing is Standing.STALE
    for app in (visit(path), visit(path, "run", run=newer.id)):
        commands = [one.value for one in app.code]
        assert "q36eval gate --branch main" in commands
        assert not any("--resume" in command for command in commands)


@pytest.mark.long
def test_what_was_held_against_itself_is_a_reference_whatever_it_is_called(path: Path) -> None:
    """As where somebody gave the branch as its own reference, or of a family that no file declares."""
    history, policy = History.open(path), read_policy(POLICY)
    judged = write_run(history, "fp8-head", 0.05, 1)
    found, own = history.measurements(judged.id), identity("d")
    run = history.start_run(family="other", branch="base", identity=own, reference_identity=own, policy=policy)
    for measurement in found:
        history.add_measurement(run.id, measurement)
    history.update_run(run.id, circumstances=Circumstances(on=run.started.date()))
    history.finish_run(run.id, decide(policy, found, (), [], on=run.started.date()))
    history.close()
    assert {name: row.standing for name, row in told(path).items()} == {
        "fp8-head": Standing.SHIP,
        "base": Standing.REFERENCE,
    }


@pytest.mark.long
def test_the_banner_leaves_out_nothing_that_ships_for_what_does_not(path: Path) -> None:
    history = History.open(path)
    write_run(history, "fp8-head", 0.05, 1)
    write_run(history, "main", 0.05, 1)
    for number in range(3):
        write_run(history, f"bad-{number}", 4.0, 4)
    history.close()
    rows, declared = list(told(path).values()), {"main": Declared(size=1.0), "fp8-head": Declared(size=2.0)}
    named, more = of_banner(rows, declared, most=2)
    assert [row.row.of.branch for row in named] == ["main", "fp8-head", "bad-0", "bad-1"]
    assert more == 1


@pytest.mark.long
def test_a_row_names_the_policy_that_judged_it(path: Path, visit: Visit) -> None:
    """Anybody may write one that asks for little."""
    history = History.open(path)
    write_run(history, "main", 0.05, 1)
    history.close()
    assert any("policy sandbox" in caption.value for caption in visit(path).caption)


@pytest.mark.long
def test_a_pass_whose_waiver_is_gone_needs_a_person(path: Path, visit: Visit) -> None:
    history, today = History.open(path), datetime.now(UTC).date()
    policy = read_policy(POLICY)
    waivers = tuple(
        Waiver(owner="Ada", reason="known", criterion=one.id, expires=today + timedelta(days=9))
        for one in policy.criteria
    )
    run = write_run(history, "int2-experts", 4.0, 4, waivers=waivers)
    history.close()
    assert run.report is not None
    assert run.report.waived
    assert told(path)["int2-experts"].standing is Standing.STALE
    queue = visit(path, "review")
    assert any("which was revoked; gate it again" in one.value for one in queue.text)
    assert not any("PASS" in one.value for one in queue.markdown), "nobody should bless it for its badge"
    assert "STALE" in visit(path, "review", run=run.id).warning[0].value
    app = visit(path)
    app.segmented_control(key="overview_which").set_value(NEEDS).run()
    assert any("int2" in element.proto.label for element in app.get("page_link"))


@pytest.mark.long
@pytest.mark.parametrize("why", ["revoked", "asks less", "rewritten"])
def test_a_blessed_pass_that_does_not_ship_waits_for_a_person(path: Path, visit: Visit, why: str) -> None:
    """Its newest verdict is a PASS that somebody blessed, and the first page does not let it ship."""
    history, policy, waivers = History.open(path), read_policy(POLICY), tuple[Waiver, ...]()
    if why == "revoked":
        until = datetime.now(UTC).date() + timedelta(days=90)
        waivers = tuple(Waiver(owner="Ada", reason="known", criterion=one.id, expires=until) for one in policy.criteria)
    run = judge_run(history, 0, date(2026, 3, 1), reference=REFERENCE) if why == "asks less" else None
    run = run or write_run(history, "main", 4.0 if waivers else 0.05, 4, waivers=waivers)
    assert run.verdict == "PASS"
    history.bless(run.id, "Jana", "good")
    history.close()
    if why == "rewritten":
        with sqlite3.connect(path) as database:
            database.execute("UPDATE runs SET verdict = 'PASS', waived = 1")
    row = told(path)["main"]
    assert not row.ships
    app = visit(path, "review")
    assert not app.success
    assert row.chip in " ".join(one.value for one in app.markdown)


@pytest.mark.long
def test_what_would_ship_nothing_with_a_signature_is_not_offered_to_be_signed(path: Path, visit: Visit) -> None:
    history = History.open(path)
    run = judge_run(history, 0, date(2026, 3, 1), family="mine", reference=REFERENCE, require_sign_off=True)
    about = {"family": "mine", "branch": "main", "reference_identity": REFERENCE}
    assert [one.value for one in visit(path, "review").text if "read it and sign" in one.value]
    history.start_run(identity=IDENTITY.model_copy(update={"checkpoint_sha256": "ee"}), **about)
    history.close()
    assert told(path)["main"].standing is Standing.STALE
    queue = visit(path, "review")
    assert not [one.value for one in queue.text if "read it and sign" in one.value]
    assert [one.value for one in queue.text if "a newer run is of other bytes" in one.value]
    for page in ("review", "run"):
        assert "STALE" in visit(path, page, run=run.id).warning[0].value


@pytest.mark.long
def test_an_empty_queue_says_no_more_than_is_so(path: Path, visit: Visit) -> None:
    history = History.open(path)
    history.bless(write_run(history, "main", 0.05, 1).id, "Jana", "good")
    interrupted = history.start_run(family="sandbox", branch="w4a16", identity=None, reference_identity=None)
    history.finish_run(interrupted.id, state=RunState.INTERRUPTED)
    history.close()
    app = visit(path, "review")
    assert "Nothing waits for a person" in app.success[0].value
    assert "every branch" not in app.success[0].value
    assert "Without any verdict so far: w4a16." in [one.value for one in app.text]


@pytest.mark.long
@pytest.mark.parametrize("owner", ["Ada) may ship. Blocked: nobody (", "Ada`), `int2-experts` (smallest"])
def test_who_waives_cannot_speak_for_the_banner(path: Path, owner: str) -> None:
    history, until = History.open(path), datetime.now(UTC).date() + timedelta(days=9)
    waivers = tuple(
        Waiver(owner=owner, reason="known", criterion=one.id, expires=until) for one in read_policy(POLICY).criteria
    )
    for waiver in waivers:
        history.add_waiver("sandbox", "w4a16", waiver)
    write_run(history, "w4a16", 4.0, 4, waivers=waivers)
    history.close()
    marked = sentence(banner("sandbox", list(told(path).values()), {}), code="[{}]".format)
    by = owner.replace("`", "'")
    assert marked == f"sandbox – Structured and free-form: [w4a16] (waived until {until} by [{by}]) may ship."


def test_what_a_branch_is_called_cannot_speak_for_the_banner(path: Path) -> None:
    """In a terminal, where backticks alone set a name apart."""
    history = History.open(path)
    write_run(history, "main` may ship. Blocked: `fp8-head", 0.05, 1)
    history.close()
    said = q36eval("history", "status", state=path.parent).stdout.splitlines()[0]
    assert said.count("`") == 2
    assert said.endswith("`main'␣may␣ship.␣Blocked:␣'fp8-head` may ship.")


@pytest.mark.long
def test_a_report_of_a_pass_says_beside_it_that_the_branch_is_blocked_by_now(path: Path) -> None:
    """Whoever publishes its card reads in it, and on the terminal, that a later gate of the same bytes failed."""
    history = History.open(path)
    passed = write_run(history, "fp8-head", 0.05, 1)
    state = path.parent
    assert q36eval("report", passed.id, "--format", "card", state=state).stderr == ""
    write_run(history, "fp8-head", 4.0, 4)
    history.close()
    done = q36eval("report", passed.id, "--format", "card", state=state)
    now = "fp8-head now, by another run: ✗ BLOCKED. 3 required prompts flipped"
    assert now in done.stderr
    assert f"- **This verdict stands no longer**: as of {datetime.now(UTC):%Y-%m-%d}, {now}" in done.stdout
    assert done.returncode == 0


@pytest.mark.long
def test_the_banner_does_not_offer_what_is_found_to_drift(tmp_path: Path, visit: Visit) -> None:
    history = open_history(tmp_path)
    about = {"family": "mine", "reference": REFERENCE}
    runs = [judge_run(history, count, date(2026, 3, 1), **about) for count in (0, 0, 0, 0, 8, 8, 8, 8)]
    history.bless(runs[0].id, "Jana", "good")
    for kept in (False, True):
        if kept:
            keep_drifts(history)
        forget()
        assert "<code>main</code>, drifting for the worse: " in banners(visit(Path(history.name)))
    history.close()


@pytest.mark.long
@pytest.mark.parametrize("page", ["branch", "compare"])
@pytest.mark.parametrize("address", [{"branch": "zzz"}, {"family": "zzz"}, {"family": "zzz", "branch": "main"}])
def test_an_address_that_names_no_branch_shows_none(
    path: Path, visit: Visit, page: str, address: dict[str, str]
) -> None:
    history = History.open(path)
    write_run(history, "main", 0.05, 1)
    write_run(history, "fp8-head", 0.05, 1)
    history.close()
    app = visit(path, page, **address)
    assert "names no branch of this history" in app.error[0].value
    assert not app.selectbox
