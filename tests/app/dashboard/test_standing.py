"""How a branch stands: by its newest verdict under the family's current policy, and what takes a PASS back."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driving import Visit
from written_history import POLICY, evidence, identity, write_run

import q36eval.app.standing as standing
from q36eval.app.standing import BranchStanding, Standing, Standings
from q36eval.chat.declared_template import TEMPLATE, DeclaredTemplate
from q36eval.errors import UsageError
from q36eval.gate import Circumstances, GateReport, Policy, Waiver, decide, with_integrity
from q36eval.gate.declaration import DECLARED, declaration
from q36eval.gate.policy_file import inherit, read_policy
from q36eval.history import History, RunRecord, RunState
from q36eval.provenance import CHANGED
from q36eval.records import DeploymentIdentity, Lane
from q36eval.run.drift import judged_keys
from tests.app.judged_runs import IDENTITY, REFERENCE, judge_run
from tests.commands import q36eval

SANDBOX = read_policy(POLICY)
GOOD, RUINED = 0.05, 4.0


PRE_CHECK = Policy.model_validate(inherit(SANDBOX, {"name": "quick-look", "purpose": "pre-check"}).document)
STRUCTURED = SANDBOX.for_lanes([Lane.STRUCTURED]).model_copy(update={"name": "structured-only"})
SMALL = SANDBOX.model_copy(update={"name": "small", "criteria": SANDBOX.criteria[:3]})


def gate(
    history: History,
    policy: Policy,
    damage: float = GOOD,
    *,
    branch: str = "main",
    family: str = "sandbox",
    of: DeploymentIdentity | None = None,
    declares: Policy | None = None,
    provenance: dict[str, Any] | None = None,
    waivers: tuple[Waiver, ...] = (),
    **says: Any,
) -> RunRecord:
    """A finished run of a branch with that much damage under a policy, in a family that `declares` one or ships."""
    known = {} if declares is None else {DECLARED: declaration(declares, **says).model_dump(mode="json")}
    run = history.start_run(
        family=family,
        branch=branch,
        identity=of or identity("d"),
        reference_identity=identity("a"),
        policy=policy,
        provenance={**known, **(provenance or {})},
    )
    asked = {(one.probe, one.metric, one.slice) for one in with_integrity(policy).criteria}
    for one in evidence(SANDBOX, damage, 1):
        if (one.probe, one.metric, one.slice) in asked:
            history.add_measurement(run.id, one)
    history.update_run(run.id, circumstances=Circumstances(on=run.started.date(), waivers=waivers))
    return history.finish_run(run.id, decide(policy, history.measurements(run.id), waivers, on=run.started.date()))


def found(history: History) -> dict[str, BranchStanding]:
    known = Standings(history, datetime.now(UTC))
    return {row.of.branch: known.of(row.key) for row in known.all()}


def standings(history: History) -> dict[str, Standing]:
    return {branch: row.standing for branch, row in found(history).items()}


def test_the_newest_verdict_under_the_familys_policy_decides(history: History) -> None:
    for damage, stands in ((GOOD, Standing.SHIP), (RUINED, Standing.BLOCKED), (GOOD, Standing.SHIP)):
        run = gate(history, SANDBOX, damage)
        row = found(history)["main"]
        assert (row.standing, row.run.id) == (stands, run.id)


@pytest.mark.parametrize("policy", [SMALL, PRE_CHECK, STRUCTURED], ids=lambda policy: policy.name)
@pytest.mark.parametrize("damage", [GOOD, pytest.param(RUINED, marks=pytest.mark.long)])
def test_a_run_under_another_policy_releases_nothing_and_hides_nothing(
    history: History, policy: Policy, damage: float
) -> None:
    run = gate(history, policy, damage)
    row = found(history)["main"]
    structured = row.lanes[Lane.STRUCTURED]
    assert (structured.standing, structured.run.id if structured.run else None) == (Standing.STALE, run.id)
    assert f"under policy {policy.name}" in structured.why
    assert not row.ships
    gate(history, SANDBOX)
    gate(history, policy, damage)
    row = found(history)["main"]
    assert (row.standing, row.ships) == (Standing.SHIP, True)
    assert f"A newer run under another policy, {policy.name}, is " in row.why


def test_a_family_that_does_not_ship_is_known_from_what_its_gates_recorded(history: History) -> None:
    mine = {"family": "mine", "declares": SANDBOX}
    gate(history, SANDBOX, **mine, lanes=(Lane.STRUCTURED,))
    gate(history, SANDBOX, branch="base", is_reference=True, **mine)
    gate(history, SMALL, branch="lax", **mine)
    gate(history, SANDBOX, branch="unknown", family="other")
    assert standings(history) == {
        "main": Standing.SHIP,
        "base": Standing.REFERENCE,
        "lax": Standing.STALE,
        "unknown": Standing.STALE,
    }
    assert list(found(history)["main"].lanes) == [Lane.STRUCTURED]
    stricter = SANDBOX.model_copy(update={"max_attempts": 1})
    gate(history, stricter, branch="new", family="mine", declares=stricter)
    assert standings(history)["main"] is Standing.STALE, "the family's policy changed"
    assert standings(history)["new"] is Standing.SHIP


TITLED = SANDBOX.model_copy(
    update={"criteria": tuple(one.model_copy(update={"title": "Mine"}) for one in SANDBOX.criteria)}
)


@pytest.mark.parametrize(
    ("policy", "declares", "says", "stands"),
    [
        (TITLED, SANDBOX, {}, Standing.SHIP),  # a title makes no other policy
        (SANDBOX.for_lanes([Lane.STRUCTURED]), SANDBOX, {"lanes": (Lane.STRUCTURED,)}, Standing.SHIP),
        (SANDBOX.for_lanes([Lane.FREEFORM]), SANDBOX, {"lanes": (Lane.STRUCTURED,)}, Standing.NOT_JUDGED),
        (STRUCTURED, STRUCTURED, {"lanes": (Lane.FREEFORM,)}, Standing.NOT_JUDGED),
        (SANDBOX, SANDBOX, {"against": "int2-experts"}, Standing.STALE),
    ],
)
def test_what_the_family_declares_decides(
    history: History, policy: Policy, declares: Policy, says: dict[str, Any], stands: Standing
) -> None:
    gate(history, policy, family="mine", declares=declares, **says)
    row = found(history)["main"]
    assert (row.standing, row.ships) == (stands, stands is Standing.SHIP)
    assert says.get("against", "") in row.why


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{"weights": "e"}, {"tokenizer_sha256": "9" * 64}, {"chat_template_sha256": "9" * 64}, {"engine_version": "6.0"}],
    ids=["checkpoint", "tokenizer", "template", "engine version"],
)
@pytest.mark.parametrize("state", [None, RunState.INTERRUPTED, RunState.FINISHED])
def test_a_pass_of_other_files_than_the_newest_run_read_is_stale(
    history: History, changes: dict[str, str], state: RunState | None
) -> None:
    """Also where a run after that one ended before it read a file. The unfinished runs stay visible."""
    gate(history, SANDBOX)
    now = identity(**{"weights": "d"} | changes)
    for begun in (now, None):
        run = history.start_run(family="sandbox", branch="main", identity=begun, reference_identity=identity("a"))
        if state is not None:
            history.finish_run(run.id, state=state)
    row = found(history)["main"]
    assert row.standing is (Standing.SHIP if "engine_version" in changes else Standing.STALE)
    assert (f"A newer run is {state or RunState.RUNNING}." in row.why) is (state is not RunState.FINISHED)


@pytest.mark.long
def test_a_run_whose_checkpoint_changed_is_not_offered_to_be_resumed(history: History, visit: Visit) -> None:
    gate(history, SANDBOX)
    same = {"identity": identity("d"), "reference_identity": identity("a")}
    newer = history.start_run(family="sandbox", branch="main", provenance={CHANGED: "a.safetensors changed"}, **same)
    history.finish_run(newer.id, state=RunState.INTERRUPTED)
    assert standings(history)["main"] is Standing.STALE
    assert "Gate it again" in [one.proto.label for one in visit(Path(history.name)).get("page_link")]
    commands = [one.value for one in visit(Path(history.name), "run", run=newer.id).code]
    assert "q36eval gate --branch main" in commands
    assert not any("--resume" in command for command in commands)


@pytest.mark.long
@pytest.mark.parametrize(
    ("declares", "recorded", "ships"),
    [
        ("", None, True),
        ("c" * 64, None, True),
        ("9" * 64, None, False),
        ("", "9" * 64, False),
        ("c" * 64, "c" * 64, True),
        ("9" * 64, "c" * 64, False),
    ],
)
def test_a_pass_with_another_template_than_the_family_declares_is_stale(
    history: History, monkeypatch: pytest.MonkeyPatch, declares: str, recorded: str | None, ships: bool
) -> None:
    own = recorded and DeclaredTemplate(sha256=recorded, by="the family's file", reference_sha256="a" * 64)
    gate(history, SANDBOX, provenance={TEMPLATE: own.model_dump(mode="json")} if own else {})
    shipped = standing.shipped_rules("sandbox")
    rules = replace(shipped, branches={"main": declaration(SANDBOX, template=declares)})
    monkeypatch.setattr(standing, "shipped_rules", lambda _: rules)
    assert found(history)["main"].ships is ships


def test_what_was_compared_with_itself_is_a_reference(history: History) -> None:
    gate(history, SANDBOX, 0.0, branch="copy", of=identity("a"))
    assert standings(history)["copy"] is Standing.REFERENCE


def test_a_waived_pass_stands_while_its_waivers_do(history: History) -> None:
    until = datetime.now(UTC).date() + timedelta(days=9)
    waivers = tuple(Waiver(owner="Ada", reason="known", criterion=one.id, expires=until) for one in SANDBOX.criteria)
    gate(history, SANDBOX, RUINED, waivers=waivers)
    assert standings(history)["main"] is Standing.STALE, "no such waiver is in force"
    numbers = [history.add_waiver("sandbox", "main", waiver) for waiver in waivers]
    row = found(history)["main"]
    assert (row.standing, row.chip) == (Standing.WAIVED, f"✓ WAIVED until {until} by Ada")
    late = Standings(history, datetime.now(UTC) + timedelta(days=10))
    assert late.of(row.key).standing is Standing.STALE
    for number in numbers:
        history.revoke_waiver(number, "Eva")
    assert standings(history)["main"] is Standing.STALE


def test_a_pass_that_waits_for_a_signature_does_not_ship(history: History) -> None:
    about = {"family": "mine", "reference": REFERENCE}
    judge_run(history, 0, date(2026, 3, 1), require_sign_off=True, **about)
    row = found(history)["main"]
    assert (row.standing, row.ships) == (Standing.SIGN, False)
    changed = IDENTITY.model_copy(update={"checkpoint_sha256": "ee"})
    history.start_run(family="mine", branch="main", identity=changed, reference_identity=REFERENCE)
    assert standings(history)["main"] is Standing.STALE, "signed, it would ship nothing"


def test_release_candidates_alone_are_listed_and_an_archived_one_again_from_its_next_gate(history: History) -> None:
    gate(history, SANDBOX)
    gate(history, SANDBOX, RUINED, branch="watch:prod")
    for branch, policy in (("/srv/inspected", None), ("/srv/mistyped", SANDBOX)):
        run = history.start_run(
            family="sandbox", branch=branch, identity=None, reference_identity=identity("a"), policy=policy
        )
        history.finish_run(run.id, state=RunState.INTERRUPTED)
    apart = {branch: row.apart for branch, row in found(history).items()}
    assert apart.pop("main") == ""
    assert sorted(why.split()[0] for why in apart.values()) == ["Inspected", "No", "Rounds"]
    history.archive("sandbox", "main", "Eva", "superseded")
    row = found(history)["main"]
    assert (row.apart.partition(" on ")[0], row.ships) == ("Archived by Eva", True), "it may ship as before"
    with pytest.raises(UsageError, match="archived already"):
        history.archive("sandbox", "main", "Jan", "again")
    history.archive("sandbox", "main", "Jan", "needed again", archived=False)
    assert found(history)["main"].apart == ""
    history.archive("sandbox", "main", "Eva", "superseded")
    gate(history, SANDBOX, RUINED)
    assert found(history)["main"].apart == "", "what fails now is not hidden"


def test_drift_for_the_worse_is_known_beside_the_verdict(history: History) -> None:
    about = {"family": "mine", "reference": REFERENCE}
    runs = [judge_run(history, count, date(2026, 3, 1), **about) for count in (0, 0, 16, 16)]
    history.bless(runs[0].id, "Jana", "good")
    assert found(history)["main"].drifts


@pytest.mark.long
@pytest.mark.parametrize("name", ["main\nmay ship", "main \u202epihs yam", "x" * 500, "/x" * 500, "\u200b"])
def test_a_name_cannot_speak_for_the_page(history: History, visit: Visit, name: str) -> None:
    gate(history, SANDBOX, RUINED, branch=name)
    (shown,) = [one.proto.label for one in visit(Path(history.name)).get("page_link") if one.proto.label[:2] == "**"]
    assert 0 < len(shown.replace("\\", "").strip("*")) <= 48
    assert not any(one.isspace() or one in "\u202e\u200b" for one in shown)


@pytest.mark.long
def test_the_pages_of_a_branch_and_of_its_runs_say_what_the_front_page_says(history: History, visit: Visit) -> None:
    """A green PASS that ships nothing would be taken for leave to ship."""
    path = Path(history.name)
    small = gate(history, SMALL)
    app = visit(path, "branch", family="sandbox", branch="main")
    badges = [one.value for one in app.markdown if "badge" in one.value]
    assert any("STALE" in one for one in badges)
    assert not any("PASS" in one for one in badges)
    assert any("STALE" in one.value for one in visit(path).markdown)
    assert "STALE" in visit(path, "run", run=small.id).warning[0].value
    assert any("STALE" in one.value for one in visit(path, "review").markdown)
    passed = gate(history, SANDBOX)
    assert not visit(path, "run", run=passed.id).warning, "it says itself that the branch may ship"
    assert "by another run" in visit(path, "run", run=small.id).info[0].value
    gate(history, SANDBOX, RUINED)
    app = visit(path, "run", run=passed.id)
    assert "✗ BLOCKED" in app.warning[0].value
    assert "The run that decides" in [one.proto.label for one in app.get("page_link")]


@pytest.mark.long
def test_a_report_of_a_pass_says_that_the_branch_is_blocked_by_now(history: History, tmp_path: Path) -> None:
    """Whoever publishes its card reads in it, and on the terminal, that a later gate of the same bytes failed."""
    passed = write_run(history, "fp8-head", GOOD, 1)
    assert q36eval("report", passed.id, "--format", "card", state=tmp_path).stderr == ""
    write_run(history, "fp8-head", RUINED, 4)
    done = q36eval("report", passed.id, "--format", "card", state=tmp_path)
    now = "fp8-head now, by another run: ✗ BLOCKED. "
    assert now in done.stderr
    assert f"- **This verdict stands no longer**: as of {datetime.now(UTC):%Y-%m-%d}, {now}" in done.stdout
    assert done.returncode == 0


def test_what_a_gate_judged_is_followed_beside_what_a_server_shows_later(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate(history, SANDBOX)
    judged = judged_keys(history, "sandbox", "main")
    gate(history, SMALL)
    assert set(judged_keys(history, "sandbox", "main") or ()) < set(judged)
    monkeypatch.setattr(GateReport, "of_server_alone", property(lambda report: report.policy == SMALL.name))
    assert judged_keys(history, "sandbox", "main") == judged
