"""Which branch is fit for which lane, and that one that cannot be judged loses no other's verdict."""

import pytest

from app.recommending import Candidate, recommend, sentences
from q36eval.gate import GateReport, LaneResult
from q36eval.records import Lane, Verdict

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
