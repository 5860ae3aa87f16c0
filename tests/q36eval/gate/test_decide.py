"""The decision's rules, one by one and as properties."""

from datetime import date

import pytest
from evidence import accuracy, census, failure_rate, small_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from q36eval.gate import CriterionVerdict, GateReport, Waiver, decide
from q36eval.records import Counts, Measurement, ProbeFailure, ProbeName, Verdict

N = 200
ORDER = {Verdict.FAIL: 0, Verdict.INCONCLUSIVE: 1, Verdict.PASS: 2}


def evidence(mmlu_lost: int = 0, tools_broken: int = 0, faults: int = 0) -> list[Measurement]:
    return [
        accuracy([0] * mmlu_lost + [1] * (N - mmlu_lost), [1] * N),
        failure_rate([1] * tools_broken + [0] * (N - tools_broken), [0] * N, "tools"),
        census(ProbeName.WEIGHTS, "integrity_faults", faults),
    ]


def result(report: GateReport, identifier: str):
    return next(r for r in report.criteria if r.id == identifier)


def test_an_identical_branch_passes_every_lane() -> None:
    report = decide(small_policy(), evidence())
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.PASS, 0, ())
    assert {lane.verdict for lane in report.lanes} == {Verdict.PASS}
    assert result(report, "mmlu").figure == 1.0
    assert 0.9 < result(report, "mmlu").figure_interval.lower < 1.0 < result(report, "mmlu").figure_interval.upper


def test_lanes_are_judged_apart() -> None:
    report = decide(small_policy(), evidence(tools_broken=80))
    assert {lane.lane: lane.verdict for lane in report.lanes} == {"structured": "FAIL", "freeform": "PASS"}
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("tools",))


def test_across_the_margin_is_inconclusive_unless_the_policy_refuses() -> None:
    report = decide(small_policy(), evidence(mmlu_lost=18))
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.INCONCLUSIVE, 3, ("mmlu",))
    policy = small_policy()
    strict = policy.criteria[0].model_copy(update={"on_inconclusive": "fail"})
    refused = decide(small_policy(criteria=(strict, *policy.criteria[1:])), evidence(mmlu_lost=18))
    assert (refused.verdict, refused.exit_code) == (Verdict.FAIL, 1)


def test_one_counted_fault_is_enough_even_if_its_probe_crashed_later() -> None:
    crash = ProbeFailure(probe=ProbeName.WEIGHTS, reason="killed", kind="crashed")
    for failures in ((), (crash,)):
        report = decide(small_policy(), evidence(faults=1), failures=failures)
        assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("intact",))


@pytest.mark.parametrize(
    ("failures", "exit_code", "words"),
    [
        ((), 3, "no measurement evals.accuracy[mmlu]"),
        ((ProbeFailure(probe=ProbeName.EVALS, reason="--skip evals", kind="skipped"),), 3, "skipped: --skip evals"),
        ((ProbeFailure(probe=ProbeName.EVALS, reason="out of memory", kind="crashed"),), 4, "crashed: out of memory"),
    ],
)
def test_a_probe_without_figures_is_not_measured(failures, exit_code: int, words: str) -> None:
    report = decide(small_policy(), evidence()[1:], failures=failures)
    assert result(report, "mmlu").verdict is CriterionVerdict.NOT_MEASURED
    assert words in result(report, "mmlu").reason
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, exit_code)


def test_a_crash_with_figures_present_still_does_not_pass() -> None:
    crash = ProbeFailure(probe=ProbeName.EVALS, reason="killed", kind="crashed")
    report = decide(small_policy(), evidence(), failures=[crash])
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 4)


def test_a_proven_failure_outranks_what_was_not_measured() -> None:
    crash = ProbeFailure(probe=ProbeName.EVALS, reason="killed", kind="crashed")
    report = decide(small_policy(), evidence(tools_broken=80)[1:], failures=[crash])
    assert (report.verdict, report.exit_code) == (Verdict.FAIL, 1)


def test_unfit_figures_are_not_measured() -> None:
    good = evidence()
    nan = good[0].model_copy(update={"value": float("nan")})
    bare = good[0].model_copy(update={"clusters": None})
    errored = accuracy([1] * N, [1] * N, errored=3)
    few = good[0].model_copy(update={"counts": Counts(total=0, scored=0, errored=0)})
    unlike = good[0].model_copy(update={"estimator": "mean"})
    for unfit, exit_code in ((nan, 3), (bare, 3), (errored, 4), (few, 3), (unlike, 3)):
        report = decide(small_policy(), [unfit, *good[1:]])
        assert result(report, "mmlu").verdict is CriterionVerdict.NOT_MEASURED, unfit
        assert report.exit_code == exit_code
    twice = decide(small_policy(), [*good, accuracy([0] + [1] * (N - 1), [1] * N)])
    assert "measured 2 times" in result(twice, "mmlu").reason
    assert decide(small_policy(), [*good, good[0]]).verdict is Verdict.PASS


def test_a_waiver_sets_a_failure_aside_and_shows_it() -> None:
    day = date(2026, 5, 1)
    waiver = Waiver(owner="eva", reason="known, fixed in the next build", criterion="tools", expires=day)
    report = decide(small_policy(), evidence(tools_broken=80), [waiver], on=day)
    assert (report.verdict, report.exit_code, report.headline) == (Verdict.PASS, 0, "PASS with waivers")
    assert report.waived == ("tools",)
    assert result(report, "tools").verdict is CriterionVerdict.FAIL
    assert result(report, "tools").waived_by == (waiver,)
    for late in (date(2026, 5, 2), None):
        expired = decide(small_policy(), evidence(tools_broken=80), [waiver], on=late)
        assert (expired.verdict, expired.waived) == (Verdict.FAIL, ())
        assert "not in force" in expired.notes[0]


def test_what_cannot_be_waived() -> None:
    day = date(2026, 5, 1)

    def waived(criterion: str, measurements: list[Measurement]) -> GateReport:
        return decide(
            small_policy(), measurements, [Waiver(owner="eva", reason="x", criterion=criterion, expires=day)], on=day
        )

    assert waived("intact", evidence(faults=1)).verdict is Verdict.FAIL
    assert waived("mmlu", evidence()[1:]).verdict is Verdict.INCONCLUSIVE
    assert "no such criterion" in waived("mmul", evidence()).notes[0]


def test_a_lane_left_with_nothing_is_not_passed() -> None:
    policy = small_policy(criteria=small_policy().criteria[:2])
    day = date(2026, 5, 1)
    waiver = Waiver(owner="eva", reason="x", criterion="tools", expires=day)
    report = decide(policy, evidence(tools_broken=80)[:2], [waiver], on=day)
    assert {lane.lane: lane.verdict for lane in report.lanes} == {"structured": "INCONCLUSIVE", "freeform": "PASS"}


def test_report_survives_json() -> None:
    report = decide(small_policy(), evidence(mmlu_lost=18)[:2])
    assert GateReport.model_validate_json(report.model_dump_json()) == report


losses = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 1))


@settings(max_examples=60, deadline=None)
@given(losses, st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 1)))
def test_worse_evidence_never_improves_a_verdict(base, more) -> None:
    before = decide(small_policy(), evidence(*base))
    after = decide(small_policy(), evidence(*(b + m for b, m in zip(base, more, strict=True))))
    assert ORDER[after.verdict] <= ORDER[before.verdict]
    for lane_before, lane_after in zip(before.lanes, after.lanes, strict=True):
        assert ORDER[lane_after.verdict] <= ORDER[lane_before.verdict]


@settings(max_examples=40, deadline=None)
@given(losses, st.sets(st.integers(0, 2), min_size=1))
def test_removing_a_measurement_never_yields_pass(base, removed) -> None:
    kept = [m for i, m in enumerate(evidence(*base)) if i not in removed]
    report = decide(small_policy(), kept)
    assert report.verdict is not Verdict.PASS
    assert report.exit_code != 0


@settings(max_examples=30, deadline=None)
@given(losses, st.permutations(range(3)), st.permutations(range(3)))
def test_order_is_irrelevant(base, criteria_order, measurement_order) -> None:
    policy, measured = small_policy(), evidence(*base)
    straight = decide(policy, measured)
    shuffled = decide(
        small_policy(criteria=tuple(policy.criteria[i] for i in criteria_order)),
        [measured[i] for i in measurement_order],
    )
    by_id = lambda report: sorted(report.criteria, key=lambda r: r.id)  # noqa: E731
    assert by_id(straight) == by_id(shuffled)
    assert straight.model_dump(exclude={"criteria"}) == shuffled.model_dump(exclude={"criteria"})
