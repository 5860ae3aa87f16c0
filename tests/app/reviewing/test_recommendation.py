"""Which branch is fit for which lane, and that one that cannot be judged loses no other's verdict."""

import json
import re
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from q36eval.app.cli.gate_branches import Branches, Judged, Output, _judged, finish
from q36eval.app.cli.report_formats import folder_name
from q36eval.app.reviewing.recommendation import Candidate, recommend, sentences
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import GateReport, LaneResult
from q36eval.records import Lane, Verdict
from q36eval.run.request import Request
from tests.app.judged_runs import judge_run, open_history

REPOSITORY = Path(__file__).parents[3]

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def candidate(
    branch: str,
    structured: Verdict,
    freeform: Verdict,
    size: int | None,
    *,
    waived: tuple[str, ...] = (),
    awaiting: bool = False,
) -> Candidate:
    lanes = tuple(
        LaneResult(
            lane=lane,
            verdict=verdict,
            headline=str(verdict),
            decisive=() if verdict is PASS else (f"{lane}-rule",),
            waived=waived,
        )
        for lane, verdict in ((Lane.STRUCTURED, structured), (Lane.FREEFORM, freeform))
    )
    report = GateReport(
        policy="p",
        verdict=structured,
        headline=str(structured),
        exit_code=0,
        lanes=lanes,
        criteria=(),
        awaiting_sign_off=awaiting,
    )
    return Candidate(branch=branch, report=report, exit_code=0, size_bytes=size)


def fit(candidates: list[Candidate]) -> dict[str, list[str]]:
    return {str(choice.lane): [entry.branch for entry in choice.fit] for choice in recommend(candidates).lanes}


def test_each_lane_gets_the_smallest_branch_that_is_fit_as_the_cards_do() -> None:
    """The cards' own answer: the NVFP4 branch for structured output, the smaller one with an FP8 head for prose."""
    candidates = [
        candidate("bf16", PASS, PASS, 67_000),
        candidate("main", PASS, PASS, 24_000),
        candidate("fp8-head", FAIL, PASS, 23_000),
        candidate("int2", OPEN, FAIL, 9_000),
        candidate("of-unknown-size", PASS, FAIL, None),
    ]
    assert fit(candidates) == {
        "structured": ["main", "bf16", "of-unknown-size"],
        "freeform": ["fp8-head", "main", "bf16"],
    }
    assert fit(candidates[::-1]) == fit(candidates)
    lines = sentences(recommend(candidates))
    assert "  not fp8-head: FAIL: structured-rule" in lines
    assert "  not int2: INCONCLUSIVE: structured-rule" in lines


def test_what_was_not_judged_is_fit_for_nothing_and_is_said_once() -> None:
    lost = Candidate(branch="lost", problem="its weights are not here", exit_code=2)
    found = recommend([lost, candidate("main", PASS, FAIL, 5)])
    assert {str(c.lane): [e.branch for e in c.fit] for c in found.lanes} == {"structured": ["main"], "freeform": []}
    lines = sentences(found)
    assert lines[-1] == "lost was not judged: its weights are not here"
    assert "freeform: none of these branches is fit" in lines
    assert recommend([lost]).lanes == ()


@pytest.mark.parametrize("awaiting", [True, False])
def test_what_awaits_a_signature_is_not_fit_yet_and_waivers_are_named(awaiting: bool) -> None:
    one = candidate("main", PASS, PASS, 5, waived=("kl",), awaiting=awaiting)
    (structured, _) = recommend([one]).lanes
    if awaiting:
        assert (structured.fit, structured.unfit[0].why) == ((), "awaits a sign-off")
    else:
        assert structured.fit[0].waived == ("kl",)
        assert "with waivers of kl" in sentences(recommend([one]))[0]


def branches(names: list[str], state: Path) -> tuple[Branches, partial[Request]]:
    """Requests that cannot be met: there is no reference."""
    paths = Paths(REPOSITORY, state)
    family = Family.load(paths.families / "sandbox.yaml")
    request = partial(Request, family=family, reference=None, suite="sandbox", policy=None)
    return Branches(names, family, paths, None, state / "out"), request


def test_a_branch_that_cannot_be_judged_is_an_error_alone_and_a_line_among_others(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    alone, request = branches(["bf16"], tmp_path)
    alone.resolve()
    with pytest.raises(UsageError, match="There is no reference"):
        list(alone.measured(request, history))
    assert [problem.code for problem in branches(["nope"], tmp_path)[0].resolve()] == ["branch-unknown"]
    several, request = branches(["nope", "bf16"], tmp_path)
    several.resolve()
    found = [one.candidate for one in several.measured(request, history)]
    assert [(one.branch, one.exit_code, one.report) for one in found] == [("nope", 2, None), ("bf16", 2, None)]
    assert "has no branch 'nope'" in str(found[0].problem)
    assert "There is no reference" in str(found[1].problem)


def test_one_that_could_not_be_judged_loses_no_other_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = open_history(tmp_path)
    both, _ = branches(["lost", "main"], tmp_path)
    run = judge_run(history, 0, date(2026, 3, 1))
    assert run.report is not None
    lost = Candidate(branch="lost", problem="out of memory", exit_code=4)
    kept = Candidate(branch="main", run_id=run.id, report=run.report, exit_code=0, size_bytes=5)
    judged = [Judged(lost, None, None), Judged(kept, run, tmp_path)]
    assert finish(judged, both, history, Output(["json"], as_json=True)) == 4
    found = json.loads(capsys.readouterr().out)
    assert [one.get("problem") for one in found["reports"]] == ["out of memory", None]
    assert found["reports"][1] == json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [lane["fit"][0]["branch"] for lane in found["recommendation"]["lanes"]] == ["main", "main"]
    assert finish(judged, both, history, Output(["json"])) == 4
    assert "lost was not judged: out of memory" in capsys.readouterr().out


def test_report_folders_bear_names_that_every_store_of_artifacts_takes(tmp_path: Path) -> None:
    """One that is refused would cost the reports of all the others."""
    names = ["main", "fp8-head@v1.2", 'a:b\n<c>"|?*', "../..", "long" * 500]
    found = [folder_name(name) for name in names]
    assert found[:4] == ["main", "fp8-head@v1.2", "a_b__c_____", "_"]
    assert all(re.fullmatch(r"[\w.+@=,-]{1,100}", name) for name in found)


@pytest.mark.parametrize(("required", "fit_for"), [(True, []), (False, ["main"])])
def test_a_lane_that_passed_of_a_run_that_nobody_signed_is_not_fit_yet(
    tmp_path: Path, required: bool, fit_for: list[str]
) -> None:
    """The run fails in the other lane, so that its report has nothing that only awaits a signature."""
    run = judge_run(open_history(tmp_path), 150, date(2026, 3, 1), require_sign_off=required)
    assert run.report is not None
    assert (run.report.exit_code, run.report.awaiting_sign_off) == (1, False)
    assert fit([_judged(run, 5, None).candidate])["freeform"] == fit_for
