"""The decision's rules, one by one; what holds of any evidence is in test_decide_properties.py."""

import math
from datetime import UTC, datetime
from statistics import NormalDist

import numpy as np
import pytest

from q36eval.gate import CriterionVerdict, GateReport, Policy, SignOff, decide
from q36eval.gate.headroom import times_the_items
from q36eval.records import Counts, Direction, Lane, Measurement, ProbeFailure, ProbeName, Verdict
from tests.q36eval.gate.evidence import (
    FINITE,
    accuracy,
    census,
    divergence,
    flips,
    measurement,
    only,
    small_evidence,
    small_policy,
)
from tests.q36eval.stats.evidence import items

N = 200


def result(report: GateReport, identifier: str):
    return next(r for r in report.criteria if r.id == identifier)


def test_an_identical_branch_passes_every_lane_and_lanes_are_judged_apart() -> None:
    report = decide(small_policy(), small_evidence())
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.PASS, 0, ())
    assert {lane.verdict for lane in report.lanes} == {Verdict.PASS}
    assert result(report, "mmlu").figure == 1.0
    assert 0.9 < result(report, "mmlu").figure_interval.lower < 1.0 < result(report, "mmlu").figure_interval.upper
    report = decide(small_policy(), small_evidence(tools_broken=80))
    assert {lane.lane: lane.verdict for lane in report.lanes} == {"structured": "FAIL", "freeform": "PASS"}
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("tools",))


def test_a_pre_check_finds_damage_or_nothing_and_releases_nothing() -> None:
    pre_check = small_policy().model_copy(update={"purpose": "pre-check"})
    clean = decide(pre_check, small_evidence())
    assert (clean.verdict, clean.exit_code, clean.decisive) == (Verdict.INCONCLUSIVE, 3, ())
    assert clean.headline == "NOTHING FOUND (pre-check, not a release)"
    assert [(lane.verdict, lane.headline) for lane in clean.lanes] == [(Verdict.INCONCLUSIVE, "NOTHING FOUND")] * 2
    signing = decide(pre_check, small_evidence(), require_sign_off=True)
    assert not signing.awaiting_sign_off, "no signature makes a release of it"
    broken = decide(pre_check, small_evidence(tools_broken=80))
    assert (broken.verdict, broken.exit_code, broken.headline) == (Verdict.FAIL, 1, "FAIL")
    assert {lane.lane: lane.headline for lane in broken.lanes} == {"structured": "FAIL", "freeform": "NOTHING FOUND"}
    open_ = decide(pre_check, small_evidence(mmlu_lost=18))
    assert (open_.verdict, open_.headline, open_.nothing_found) == (Verdict.INCONCLUSIVE, "INCONCLUSIVE", False)


def test_across_the_margin_is_inconclusive_unless_the_policy_refuses() -> None:
    report = decide(small_policy(), small_evidence(mmlu_lost=18))
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.INCONCLUSIVE, 3, ("mmlu",))
    assert {one.id: one.code for one in report.criteria} == {
        "mmlu": "across-margin",
        "tools": "inside-margin",
        "intact": "inside-margin",
    }
    policy = small_policy()
    strict = policy.criteria[0].model_copy(update={"on_inconclusive": "fail"})
    refused = decide(small_policy(criteria=(strict, *policy.criteria[1:])), small_evidence(mmlu_lost=18))
    assert (refused.verdict, refused.exit_code, result(refused, "mmlu").code) == (Verdict.FAIL, 1, "not-proven")


def test_one_counted_fault_is_enough_even_if_its_probe_crashed_later() -> None:
    crash = ProbeFailure(probe=ProbeName.WEIGHTS, reason="killed", kind="crashed")
    for failures in ((), (crash,)):
        report = decide(small_policy(), small_evidence(faults=1), failures=failures)
        assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("intact",))
        assert result(report, "intact").code == "faults-counted"


@pytest.mark.parametrize(("kind", "exit_code"), [(None, 3), ("skipped", 3), ("crashed", 4), ("unmeasurable", 4)])
def test_a_probe_without_figures_is_not_measured(kind: str | None, exit_code: int) -> None:
    known = {"probe": ProbeName.EVALS, "reason": "no memory", "kind": kind}
    report = decide(small_policy(), small_evidence()[1:], failures=[ProbeFailure.model_validate(known)] if kind else [])
    mmlu = result(report, "mmlu")
    assert (mmlu.verdict, mmlu.code) == (CriterionVerdict.NOT_MEASURED, f"probe-{kind}" if kind else "not-measured")
    assert ("no memory" if kind else "evals.accuracy[mmlu]") in mmlu.reason
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, exit_code)


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (small_evidence(), (Verdict.INCONCLUSIVE, 4)),  # with figures present it still does not pass
        (small_evidence(tools_broken=80)[1:], (Verdict.FAIL, 1)),  # a proven failure outranks what was not measured
    ],
)
def test_a_crash_passes_nothing_and_hides_no_failure(
    evidence: list[Measurement], expected: tuple[Verdict, int]
) -> None:
    crash = ProbeFailure(probe=ProbeName.EVALS, reason="killed", kind="crashed")
    report = decide(small_policy(), evidence, failures=[crash])
    assert (report.verdict, report.exit_code) == expected


def test_losing_evidence_does_not_make_another_criterion_fail() -> None:
    """34 of 200 lost are p = 0.018: too little beside one other criterion, whether that was measured or not."""
    measured = small_evidence(mmlu_lost=34)
    for kept in (measured, [measured[0], measured[2]]):
        found = result(decide(small_policy(), kept), "mmlu")
        assert (found.verdict, found.code) == (CriterionVerdict.INCONCLUSIVE, "beyond-margin-alone")
        assert found.p_fail < 0.025 < found.p_fail_adjusted
        assert found.loss_interval.lower > found.limit
        # at the margin to which the distance leads, it fails after Holm too
        for beyond, verdict in ((1e-4, CriterionVerdict.FAIL), (-1e-4, CriterionVerdict.INCONCLUSIVE)):
            policy = with_margins(0.9 + found.to_turn + beyond, 0.1)
            assert result(decide(policy, kept), "mmlu").verdict is verdict


def test_unfit_figures_are_not_measured() -> None:
    good = small_evidence()
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
    assert result(twice, "mmlu").code == "figures-differ"
    assert decide(small_policy(), [*good, good[0]]).verdict is Verdict.PASS


def test_one_error_of_unbounded_worth_is_not_measured_and_no_open_verdict() -> None:
    fine = [0.2] * 399 + [0.0]  # of 200 tokens each: a tenth of the margin
    for error, code in (([0] * 400, ""), ([0] * 399 + [200], "errored-unbounded")):
        clusters = items(fine, units=[200 - n for n in error], bounds=None, errored=error)
        kl = measurement(ProbeName.KL, "kl_divergence", clusters, "mean")
        report = decide(only("max_value", 0.01), [FINITE, kl])
        assert (report.criteria[0].code, report.exit_code) == ((code, 4) if code else ("inside-margin", 0))


def test_a_census_of_which_one_unit_errored_is_not_measured() -> None:
    counted = items([0] * 200, errored=[0] * 199 + [1], bounds=None)
    faults = measurement(ProbeName.WEIGHTS, "coverage_faults", counted, "census")
    report = decide(only("max_count", 0, probe="weights", metric="coverage_faults"), [faults])
    assert result(report, "it").code == "errored-unbounded"


@pytest.mark.parametrize(
    ("clusters", "fields"),
    [
        *(({"weights": (1.0,) * 60 + (weight,) * 60}, {}) for weight in (0.0, -1.0, math.nan)),
        ({"units": (200,) * 60 + (0,) * 60}, {}),
        ({"units": (200,) * 119 + (-200,)}, {}),
        ({"names": ("one",) * 120}, {}),
        ({"branch": (-20.0,) * 60 + (20.0,) * 60}, {"value": 0.0}),
        ({}, {"value": 0.001}),
        ({}, {"counts": Counts(total=9, scored=9, errored=0)}),
    ],
)
def test_evidence_that_cannot_be_is_refused(clusters: dict[str, object], fields: dict[str, object]) -> None:
    """Half of the documents diverge by ten times the margin; what would hide them passes nothing."""
    whole = items([0.2] * 60 + [20.0] * 60, units=[200] * 120, bounds=None)
    found = measurement(ProbeName.KL, "kl_divergence", whole, "mean")
    found = found.model_copy(update={"clusters": whole.model_copy(update=clusters)} | fields)
    report = decide(only("max_value", 0.01), [FINITE, found])
    assert (report.criteria[0].verdict, report.criteria[0].code) == ("NOT_MEASURED", "evidence-malformed")


def test_a_count_of_more_than_was_evaluated_passes_nothing() -> None:
    found = flips({"copy": (30, 0)})
    asked = only("max_count", 2, probe="canaries", metric="must_pass_flips", slice="structured")
    for first, value in ((2.0, 2.0), (0.0, 1.0)):
        clusters = found.clusters.model_copy(update={"branch": (first,) + (0.0,) * 29})
        report = decide(asked, [found.model_copy(update={"clusters": clusters, "value": value})])
        assert report.criteria[0].code == "evidence-malformed"


@pytest.mark.parametrize(("jitter", "verdict"), [(0.0, "INCONCLUSIVE"), (1e-9, "INCONCLUSIVE"), (0.3, "PASS")])
def test_identical_documents_are_no_proof_of_all_others(jitter: float, verdict: str) -> None:
    """Thirty texts without any spread: none shows how far another one may lie."""
    values = 0.008 * (1 + jitter * np.random.default_rng(5).uniform(-1, 1, 30))
    judged = decide(only("max_value", 0.0099), [FINITE, divergence(values.tolist())]).criteria[0]
    assert judged.verdict == verdict
    assert judged.loss_interval.lower < judged.loss < judged.loss_interval.upper
    assert decide(only("max_value", 0.0099), [FINITE, divergence([0.0] * 30)]).criteria[0].verdict == "PASS"


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e300])
def test_a_ratio_to_next_to_nothing_is_not_measured(scale: float) -> None:
    reference = scale * (1 + np.random.default_rng(6).random(60))
    higher = Direction.HIGHER_IS_BETTER
    clusters = items([1.0] * 60, reference, bounds=None)
    found = measurement(ProbeName.CANARIES, "decisive_margin_ratio", clusters, "ratio", higher)
    asked = only("min_recovery", 0.9, probe="canaries", metric="decisive_margin_ratio")
    for effect, code in ((found.effect, "not-finite"), (1.0 / scale, "evidence-malformed")):
        judged = decide(asked, [found.model_copy(update={"effect": effect})]).criteria[0]
        assert (judged.verdict, judged.code) == ("NOT_MEASURED", code if scale < 1 else "not-finite")


def with_margins(mmlu: float, tools: float, **changes: object) -> Policy:
    """`small_policy` with other margins."""
    old = small_policy().criteria
    values = (mmlu, tools, 0.0)
    criteria = [
        criterion.model_copy(update={"margin": criterion.margin.model_copy(update={"value": value})} | changes)
        for criterion, value in zip(old, values, strict=True)
    ]
    return small_policy(criteria=tuple(criteria))


def test_a_verdict_says_how_far_its_bound_was_from_the_limit() -> None:
    """Moved by that much and no more, the margin gives another verdict."""
    for lost, verdict in ((0, "PASS"), (18, "INCONCLUSIVE"), (80, "FAIL")):
        measured = small_evidence(mmlu_lost=lost)
        found = result(decide(small_policy(), measured), "mmlu")
        assert found.verdict == verdict
        distance = found.to_turn if verdict == "PASS" else -found.to_turn
        for beyond, turned in ((1e-4, True), (-1e-4, False)):
            policy = with_margins(0.9 + distance + (beyond if verdict == "PASS" else -beyond), 0.1)
            # alone, so that Holm takes nothing off
            alone = decide(small_policy(criteria=policy.criteria[:1]), measured)
            assert (result(alone, "mmlu").verdict != verdict) == turned, (verdict, beyond)
    # what has no bound has no distance
    assert result(decide(small_policy(), small_evidence(faults=3)), "intact").to_turn == 3.0
    assert result(decide(small_policy(), small_evidence()), "intact").to_turn == 0.0
    assert result(decide(small_policy(), small_evidence()[1:]), "mmlu").to_turn is None
    floor = census(ProbeName.KL, "kl_divergence_noise_floor", 0).model_copy(update={"value": 0.5})
    refused = decide(only("max_value", 0.1), [divergence([0.01] * 60), floor])
    assert (refused.criteria[0].verdict, refused.criteria[0].to_turn) == (CriterionVerdict.INCONCLUSIVE, None)


def test_the_clearest_failure_comes_first_and_the_nearest_pass_is_named() -> None:
    both_lanes = with_margins(0.9, 0.1, lanes=(Lane.STRUCTURED, Lane.FREEFORM))
    failed = decide(both_lanes, small_evidence(mmlu_lost=60, tools_broken=150))
    assert failed.decisive == ("tools", "mmlu")
    assert failed.lanes[0].nearest == ("tools",), "both must turn"
    assert decide(both_lanes, small_evidence(mmlu_lost=150, tools_broken=60)).decisive == ("mmlu", "tools")
    with_a_fault = decide(both_lanes, small_evidence(mmlu_lost=150, tools_broken=60, faults=1))
    assert with_a_fault.decisive == ("intact", "mmlu", "tools")
    assert with_a_fault.lanes[0].nearest == (), "no bound that moves mends a fault"
    passed = decide(both_lanes, small_evidence(mmlu_lost=3))
    assert {lane.nearest for lane in passed.lanes} == {("mmlu",)}
    unknown = decide(both_lanes, small_evidence(mmlu_lost=18)[:2])
    assert (unknown.verdict, unknown.decisive) == (Verdict.INCONCLUSIVE, ("intact", "mmlu"))


SIGNED = SignOff(owner="eva", reason="looked through", at=datetime(2026, 5, 1, tzinfo=UTC), report_sha256="0" * 64)


def test_what_would_pass_waits_for_a_signature() -> None:
    waiting = decide(small_policy(), small_evidence(), require_sign_off=True)
    assert (waiting.verdict, waiting.exit_code, waiting.awaiting_sign_off) == (Verdict.INCONCLUSIVE, 3, True)
    assert waiting.headline == "INCONCLUSIVE, awaiting sign-off"
    assert {lane.verdict for lane in waiting.lanes} == {Verdict.PASS}, "the lanes keep what was found"
    signed = decide(small_policy(), small_evidence(), require_sign_off=True, sign_offs=[SIGNED])
    assert signed.signed_by == (SIGNED,)
    assert signed.model_copy(update={"signed_by": ()}) == decide(small_policy(), small_evidence())


@pytest.mark.parametrize("lost", [18, 150])
def test_a_signature_turns_no_other_verdict(lost: int) -> None:
    found = decide(small_policy(), small_evidence(mmlu_lost=lost))
    assert found.verdict is not Verdict.PASS
    for signatures in ((), (SIGNED,)):
        asked = decide(small_policy(), small_evidence(mmlu_lost=lost), require_sign_off=True, sign_offs=signatures)
        assert asked.model_copy(update={"signed_by": ()}) == found


def test_the_items_that_would_decide_give_four_passes_in_five() -> None:
    """Then the bound of a normal mean lies inside the limit with probability 0.8, as power is defined."""
    mmlu = result(decide(small_policy(), small_evidence(mmlu_lost=18)), "mmlu")
    near = mmlu.model_copy(update={"loss": (mmlu.loss or 0) / 2})
    times = times_the_items(near)
    normal, error = NormalDist(), (near.loss_interval.upper - near.loss) / NormalDist().inv_cdf(near.confidence)
    room = near.limit - near.loss - normal.inv_cdf(near.confidence) * error / math.sqrt(times)
    assert normal.cdf(room / (error / math.sqrt(times))) == pytest.approx(0.8)
    assert times_the_items(near.model_copy(update={"loss": near.limit})) == math.inf
    assert times_the_items(near.model_copy(update={"code": "too-few-clusters"})) is None
