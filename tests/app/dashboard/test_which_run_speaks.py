"""Which of a branch's runs says whether it may ship: by its policy, its deployment, its lanes and its place in time."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from written_history import POLICY, evidence, identity

from q36eval.app.dashboard.models.banner import banner
from q36eval.app.dashboard.models.front import Front, Standing
from q36eval.app.dashboard.reading import Reader, forget, fronts
from q36eval.gate import Circumstances, Policy, decide
from q36eval.gate.covering import DECLARED, declaration
from q36eval.gate.policy_file import inherit, read_policy
from q36eval.history import History, RunRecord
from q36eval.history.records import ASKED, SECOND_ENDPOINT
from q36eval.records import Counts, DeploymentIdentity, Lane, ProbeName
from q36eval.run.drift import judged_keys
from q36eval.run.served import alone
from q36eval.served.comparing import counted_faults

Visit = Callable[..., Any]
SANDBOX = read_policy(POLICY)
GOOD, RUINED = 0.05, 4.0


def made_of(base: Policy, name: str, **says: Any) -> Policy:
    """A policy that extends another."""
    return Policy.model_validate(inherit(base, {"name": name, **says}).document)


STRUCTURED = made_of(SANDBOX, "structured-only", lanes=["structured"])
FREEFORM = made_of(SANDBOX, "freeform-only", lanes=["freeform"])
PRE_CHECK = made_of(SANDBOX, "quick-look", purpose="pre-check")
SMALL = SANDBOX.model_copy(update={"name": "small", "criteria": SANDBOX.criteria[:3]})


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    opened = History.open(tmp_path / "history.sqlite")
    yield opened
    opened.close()


def gate(
    history: History,
    policy: Policy,
    damage: float = GOOD,
    *,
    branch: str = "main",
    family: str = "sandbox",
    of: DeploymentIdentity | None = None,
    without: ProbeName | None = None,
    declares: Policy | None = None,
    **says: Any,
) -> RunRecord:
    """A finished run of so damaged a branch, judged by that policy, of a family that `declares` another or the same."""
    about = {"lanes": (Lane.STRUCTURED,), "size_bytes": 2_000, "is_reference": False} | says
    known = None if declares is None else declaration(policy, declares, **about)
    found = [one for one in evidence(SANDBOX, damage, 1) if one.probe is not without]
    run = history.start_run(
        family=family,
        branch=branch,
        identity=of or identity("d"),
        reference_identity=identity("a"),
        policy=policy,
        provenance={} if known is None else {DECLARED: known.model_dump(mode="json")},
    )
    asked = {(one.probe, one.metric, one.slice) for one in policy.criteria}
    for one in found:
        if (one.probe, one.metric, one.slice) in asked:
            history.add_measurement(run.id, one)
    history.update_run(run.id, circumstances=Circumstances(on=run.started.date()))
    return history.finish_run(run.id, decide(policy, history.measurements(run.id), on=run.started.date()))


def told(history: History) -> dict[str, Front]:
    forget()
    known = fronts(Reader(history.name), datetime.now(UTC))
    return {row.row.of.branch: row for row in known.with_reports(known.all())}


def standings(row: Front) -> dict[Lane, Standing]:
    return {lane: each.standing for lane, each in row.lanes.items()}


@pytest.mark.long
def test_a_pass_by_a_policy_that_asks_less_does_not_ship(history: History, visit: Visit) -> None:
    assert gate(history, SMALL).report.verdict == "PASS"
    row = told(history)["main"]
    assert row.standing is Standing.NOT_JUDGED
    missing = sum(one.tier == "blocking" for one in SANDBOX.criteria[3:])
    assert row.why == f"It passes `small`, which asks less than the family's `sandbox`: {missing} criteria are missing."
    app = visit(Path(history.name))
    banners = " ".join(each.proto.body for each in app.get("html"))
    assert "nothing may ship" in banners
    assert "<b>Not judged:</b> <code>main</code>, it passes <code>small</code>, which asks less than" in banners


@pytest.mark.long
def test_the_pages_of_a_branch_and_of_its_runs_say_what_the_front_page_says(history: History, visit: Visit) -> None:
    """A green PASS that ships nothing would be taken for leave to ship, wherever it stands."""
    small, path = gate(history, SMALL), Path(history.name)
    app = visit(path, "branch", family="sandbox", branch="main")
    badges = [one.value for one in app.markdown if "badge" in one.value]
    assert any("NOT JUDGED" in one for one in badges)
    assert not any("PASS" in one for one in badges)
    assert any("which asks less than the family's" in one.value for one in app.text)
    app = visit(path, "run", run=small.id)
    assert "NOT JUDGED" in app.warning[0].value
    passed = gate(history, SANDBOX)
    forget()  # as a few seconds later
    assert not visit(path, "run", run=passed.id).warning, "it says itself that the branch may ship"
    assert "by another run" in visit(path, "run", run=small.id).info[0].value
    gate(history, SANDBOX, RUINED)
    forget()
    app = visit(path, "run", run=passed.id)
    assert "✗ BLOCKED" in app.warning[0].value
    assert "The run that says so" in [one.proto.label for one in app.get("page_link")]


@pytest.mark.long
def test_a_reference_that_passes_needs_nobody(history: History, visit: Visit) -> None:
    own = history.start_run(
        family="mine", branch="base", identity=identity("a"), reference_identity=identity("a"), policy=SANDBOX
    )
    for one in evidence(SANDBOX, 0.0, 1):
        history.add_measurement(own.id, one)
    history.update_run(own.id, circumstances=Circumstances(on=own.started.date()))
    history.finish_run(own.id, decide(SANDBOX, history.measurements(own.id), on=own.started.date()))
    assert told(history)["base"].standing is Standing.REFERENCE
    app = visit(Path(history.name))
    app = app.segmented_control(key="overview_which").set_value("Needs a person").run()
    assert "No branch is like this" in app.info[0].value


@pytest.mark.long
def test_the_newest_run_that_speaks_for_a_lane_decides_it(history: History) -> None:
    gate(history, STRUCTURED)
    row = told(history)["main"]
    assert row.chip == "✓ SHIP structured", "nobody judged the other lane"
    assert "Free-form: No run judged it for this use." in row.why
    gate(history, FREEFORM)
    row = told(history)["main"]
    assert standings(row) == dict.fromkeys(Lane, Standing.SHIP)
    assert row.chip == "✓ SHIP"
    assert {each.run.policy for each in row.lanes.values()} == {"structured-only", "freeform-only"}
    gate(history, FREEFORM, RUINED)
    row = told(history)["main"]
    assert row.chip == "✗ BLOCKED free-form", "and the other use is none of that"
    said = banner("sandbox", [row], {})
    assert [one.branch for one in said.lanes[Lane.STRUCTURED]] == ["main"]
    assert said.lanes[Lane.FREEFORM] == ()
    assert said.blocked[0].use == "free-form"


@pytest.mark.long
def test_a_later_pre_check_undoes_no_release_unless_it_fails(history: History) -> None:
    gate(history, SANDBOX)
    assert gate(history, PRE_CHECK).report.nothing_found
    row = told(history)["main"]
    assert row.standing is Standing.SHIP
    assert row.why.endswith("A newer pre-check found nothing.")
    gate(history, SMALL)
    assert "A newer run by `small`, which asks less, is PASS." in told(history)["main"].why
    gate(history, PRE_CHECK, RUINED)
    assert told(history)["main"].standing is Standing.BLOCKED
    gate(history, PRE_CHECK)
    assert told(history)["main"].standing is Standing.BLOCKED, "what found nothing does not undo a FAIL"
    gate(history, SANDBOX)
    assert told(history)["main"].standing is Standing.SHIP


@pytest.mark.long
def test_a_newer_run_that_asks_less_is_quoted_for_the_lane_that_is_spoken_of(history: History) -> None:
    gate(history, STRUCTURED)
    gate(history, FREEFORM)
    kept = tuple(one for one in SANDBOX.criteria if one.probe is ProbeName.WEIGHTS or one.lanes == (Lane.FREEFORM,))
    newer = gate(history, SANDBOX.model_copy(update={"name": "small", "criteria": kept}), without=ProbeName.CANARIES)
    assert [lane.verdict for lane in newer.report.lanes] == ["PASS", "INCONCLUSIVE"]
    lanes = told(history)["main"].lanes
    assert lanes[Lane.STRUCTURED].why.endswith("which asks less, is PASS.")
    assert lanes[Lane.FREEFORM].why.endswith("which asks less, is INCONCLUSIVE.")


def test_a_pre_check_alone_releases_nothing(history: History) -> None:
    gate(history, PRE_CHECK)
    row = told(history)["main"]
    assert (row.standing, row.why) == (
        Standing.INCONCLUSIVE,
        "A pre-check found nothing; gate it over the suite that releases.",
    )


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"weights": "e"}, {"engine": "vllm"}, {"kv_cache_dtype": "fp8"}])
def test_a_pass_of_another_deployment_than_the_newest_is_stale(history: History, changes: dict[str, str]) -> None:
    gate(history, SANDBOX)
    gate(history, PRE_CHECK, of=identity(**{"weights": "d"} | changes))
    assert told(history)["main"].standing is Standing.INCONCLUSIVE, "the newest is of what is there now"
    gate(history, STRUCTURED, of=identity(**{"weights": "d"} | changes))
    row = told(history)["main"]
    assert standings(row) == {Lane.STRUCTURED: Standing.SHIP, Lane.FREEFORM: Standing.INCONCLUSIVE}


@pytest.mark.long
def test_a_lane_that_was_judged_of_other_bytes_alone_is_stale(history: History) -> None:
    gate(history, SANDBOX)
    gate(history, STRUCTURED, of=identity("e"))
    row = told(history)["main"]
    assert standings(row) == {Lane.STRUCTURED: Standing.SHIP, Lane.FREEFORM: Standing.STALE}
    assert row.chip == "◷ STALE free-form"


@pytest.mark.long
def test_an_upgraded_engine_is_the_same_deployment(history: History) -> None:
    gate(history, SANDBOX)
    gate(history, PRE_CHECK, of=identity("d", engine_version="6.0"))
    assert told(history)["main"].standing is Standing.SHIP


def test_a_pass_against_another_branch_than_the_reference_does_not_ship(history: History) -> None:
    gate(history, SANDBOX, declares=SANDBOX, against="int2-experts")
    row = told(history)["main"]
    assert (row.standing, row.why) == (
        Standing.NOT_JUDGED,
        "It passes, held against `int2-experts`, which is not the family's reference.",
    )


@pytest.mark.long
def test_a_family_of_ones_own_is_known_from_what_its_gate_wrote_down(history: History, visit: Visit) -> None:
    """Which lanes, which size, which policy: the page never sees the file."""
    about = {"family": "mine", "declares": SANDBOX}
    gate(history, SANDBOX, **about)
    gate(history, SANDBOX, branch="big", size_bytes=9_000, **about)
    gate(history, SANDBOX, branch="base", is_reference=True, **about)
    gate(history, SMALL, branch="lax", **about)
    gate(history, SANDBOX, branch="unknown", family="other")
    rows = told(history)
    assert {branch: row.standing for branch, row in rows.items()} == {
        "main": Standing.SHIP,
        "big": Standing.SHIP,
        "base": Standing.REFERENCE,
        "lax": Standing.NOT_JUDGED,
        "unknown": Standing.NOT_JUDGED,
    }
    assert list(rows["main"].lanes) == [Lane.STRUCTURED]
    assert "not known here" in rows["unknown"].why
    banners = " ".join(each.proto.body for each in visit(Path(history.name)).get("html"))
    assert "<b>mine</b> – <b>Structured:</b> <code>main</code> (smaller), <code>big</code> may ship. <b>Not" in banners


def test_a_pass_from_before_the_familys_policy_was_made_stricter_does_not_ship(history: History) -> None:
    gate(history, SMALL, family="mine", declares=SMALL)
    assert told(history)["main"].standing is Standing.SHIP
    gate(history, SANDBOX, branch="other", family="mine", declares=SANDBOX)
    assert (
        told(history)["main"].why
        == "It passes `small`, which was held against another version of the family's `small`."
    )


@pytest.mark.long
def test_a_branch_that_passes_no_lane_that_it_is_meant_for_is_named_all_the_same(
    history: History, visit: Visit
) -> None:
    gate(history, FREEFORM, family="mine", declares=SANDBOX)
    row = told(history)["main"]
    assert (row.chip, row.why) == ("– NOT JUDGED", "No run judged it for this use.")
    banners = " ".join(each.proto.body for each in visit(Path(history.name)).get("html"))
    assert "<b>Not judged:</b> <code>main</code>." in banners


def test_a_row_that_waits_or_is_blocked_says_that_the_bytes_are_others_by_now(history: History) -> None:
    gate(history, SANDBOX, RUINED)
    history.start_run(family="sandbox", branch="main", identity=identity("e"), reference_identity=identity("a"))
    assert told(history)["main"].why.endswith(" A newer run is of other bytes.")


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["main\nmay ship", "main \u202epihs yam", "main\u2028may\u00a0ship.", "x" * 500, "\u200b"]
)
def test_a_name_cannot_speak_for_the_page(history: History, visit: Visit, name: str) -> None:
    gate(history, SANDBOX, RUINED, branch=name)
    (shown,) = [each.proto.body for each in visit(Path(history.name)).get("html") if 'banner"><b>' in each.proto.body]
    named = shown.partition("<code>")[2].partition("</code>")[0]
    assert 0 < len(named) <= 48
    assert not any(one.isspace() or one in "\u202e\u200b" for one in named)
    assert "nothing may ship" in shown


SERVED = alone(read_policy(POLICY.parent / "served.yaml"), against=False)
PROMPTS, GREEDY = (
    SERVED.model_copy(update={"criteria": tuple(each for each in SERVED.criteria if each.id == name)})
    for name in ("served-prompts", "served-greedy")
)


def endpoint(version: str = "vllm 0.26.0", **settings: str) -> DeploymentIdentity:
    known = identity("d").model_dump() | {"engine": "openai", "engine_version": version, "settings": settings}
    return DeploymentIdentity.model_validate(known)


def served(
    history: History, of: DeploymentIdentity, faults: int | None, policy: Policy = PROMPTS, **asked: Any
) -> RunRecord:
    """A run of an endpoint by itself with so many faults; None is one that was not measured. It `asked` so much."""
    known = declaration(policy, SANDBOX, lanes=(Lane.STRUCTURED,), size_bytes=2_000, is_reference=False)
    run = history.start_run(
        family="sandbox",
        branch="main",
        identity=of,
        reference_identity=None,
        policy=policy,
        provenance={DECLARED: known.model_dump(mode="json"), ASKED: {"items": 64, "concurrency": 64} | asked},
    )
    if faults is not None:
        counts = Counts(total=64, scored=64, errored=0)
        history.add_measurement(run.id, counted_faults(policy.criteria[0].metric, "all", ["one"] * faults, counts))
    history.update_run(run.id, circumstances=Circumstances(on=run.started.date()))
    return history.finish_run(run.id, decide(policy, history.measurements(run.id), on=run.started.date()))


@pytest.mark.long
def test_what_a_server_shows_by_itself_undoes_no_gate_unless_it_fails(history: History) -> None:
    gate(history, SANDBOX)
    assert told(history)["main"].ships
    served(history, endpoint(), 0)
    assert told(history)["main"].ships
    served(history, endpoint("no answer"), None)
    assert told(history)["main"].ships
    served(history, endpoint(), 1)
    assert told(history)["main"].standing is Standing.BLOCKED
    served(history, endpoint(served_model="other"), 0)
    assert told(history)["main"].standing is Standing.BLOCKED, "another server is not the one that failed"
    served(history, endpoint(), 0, concurrency=2)
    assert told(history)["main"].standing is Standing.BLOCKED, "what was asked less of mends nothing"
    served(history, endpoint(), None)
    assert told(history)["main"].standing is Standing.BLOCKED, "what was not measured mends nothing"
    served(history, endpoint(), 0, GREEDY)
    assert told(history)["main"].standing is Standing.BLOCKED, "what was not asked mends nothing"
    served(history, endpoint("vllm 0.26.1", context="16384", fingerprint="b"), 0, concurrency=128)
    assert told(history)["main"].ships, "that server was mended, however it is started now"


def test_a_second_server_that_failed_is_mended_by_a_pass_beside_a_second_one(history: History) -> None:
    gate(history, SANDBOX)
    served(history, endpoint(), 1, **{SECOND_ENDPOINT: {"engine": "openai"}})
    served(history, endpoint(), 0)
    assert told(history)["main"].standing is Standing.BLOCKED
    served(history, endpoint(), 0, **{SECOND_ENDPOINT: {"engine": "openai"}})
    assert told(history)["main"].ships


def test_what_a_gate_judged_is_followed_beside_what_a_server_shows_later(history: History) -> None:
    gate(history, SANDBOX)
    before = judged_keys(history, "sandbox", "main")
    assert before is not None
    served(history, endpoint(), 0, GREEDY)
    served(history, endpoint(), 0)
    assert judged_keys(history, "sandbox", "main") == {*before, "served.prompt_differences[all]"}


def test_a_server_that_passes_releases_nothing_by_itself(history: History) -> None:
    served(history, endpoint(), 0)
    row = told(history)["main"]
    assert not row.ships
    assert "asks less" in row.why


def test_a_failed_gate_stays_failed_beside_a_server_that_passes_or_does_not_answer(history: History) -> None:
    gate(history, SANDBOX, RUINED)
    served(history, endpoint(), 0)
    served(history, endpoint("no answer"), None)
    assert told(history)["main"].standing is Standing.BLOCKED


@pytest.mark.long
@pytest.mark.parametrize("faults", [0, 1, None], ids=["passes", "fails", "no answer"])
def test_the_pages_show_a_run_of_a_server_by_itself(history: History, visit: Visit, faults: int | None) -> None:
    run = served(history, endpoint(served_model="main"), faults)
    path = Path(history.name)
    app = visit(path, "run", run=run.id, open="criteria")
    words = {0: "PASS", 1: "FAIL", None: "INCONCLUSIVE"}[faults]
    assert words in app.header[0].value
    text = "\n".join(element.value for element in app.text)
    assert ("The engine is at fault" in text) is (faults == 1)
    assert "attribute --branch" not in text
    listed = visit(path, "branch", family="sandbox", branch="main", tab="runs")
    assert run.id in "\n".join(element.value for element in listed.text)
