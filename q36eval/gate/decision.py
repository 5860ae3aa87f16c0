"""The decision: a pure function from a policy and measurements to a report."""

from collections.abc import Collection, Mapping, Sequence
from datetime import date

from q36eval.errors import ExitCode
from q36eval.gate.attempts import Tried, attempts_of
from q36eval.gate.evidence import Evidence
from q36eval.gate.headroom import BEYOND_ALONE, accepted, clearest_first, held_back, nearest, to_turn
from q36eval.gate.integrity import believed, drifts, with_integrity
from q36eval.gate.judgement import is_unable
from q36eval.gate.margins import held_words, margins_held, with_thresholds
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import (
    NOTHING_FOUND,
    CriterionResult,
    CriterionVerdict,
    GateReport,
    LaneResult,
    SignOff,
    Stage,
    Waiver,
)
from q36eval.gate.waivers import apply_waivers
from q36eval.records import Lane, Measurement, ProbeFailure, ProbeName, Verdict
from q36eval.stats import holm


def decide(
    policy: Policy,
    measurements: Sequence[Measurement],
    waivers: Sequence[Waiver] = (),
    failures: Sequence[ProbeFailure] = (),
    *,
    on: date | None = None,
    blessed: Sequence[Measurement] = (),
    blessed_refused: Mapping[ProbeName, str] | None = None,
    stages: Sequence[Stage] = (),
    require_sign_off: bool = False,
    sign_offs: Sequence[SignOff] = (),
    tried: Tried | None = None,
) -> GateReport:
    """Judge every criterion, every lane and the whole. Same input, same report; no I/O, no clock.

    `blessed` holds the measurements of the run by which the branch was last accepted. `blessed_refused` gives, for each
    probe whose figures there cannot be compared, the reason. `stages` is the order of evaluation, copied into the
    report. `sign_offs` are the signatures under exactly this report without signatures. `tried` are the earlier gates
    of the same deployment by the same criteria. The order of these, of criteria, measurements, failures and waivers has
    no effect.

    PASS requires every blocking criterion to pass (an intersection-union test). FAIL requires one blocking criterion
    significantly outside its margin after Holm over its tier; counted faults (`max_count`) are not corrected, one is
    enough. A missing measurement never passes. Exit code: 1 for a proven FAIL; 4 if the engine or a crashed probe
    prevented the measurement of a blocking criterion; else 3. A margin below the noise floor proves nothing: the gate
    refuses it before the branch is measured, and a stored run with one gets INCONCLUSIVE for that criterion. Non-finite
    tokens and a damaged checkpoint fail every lane, whether or not the policy has criteria for them. Answers of an
    engine that changed more of them than its own nondeterminism explains are not judged: that is the engine's fault,
    not the branch's.

    A waiver in force on the day `on` sets aside a FAIL or INCONCLUSIVE criterion. A release manager wants to see the
    finding, who excused it and until when, and wants the pipeline to continue. So the criterion keeps its verdict and
    carries the waiver, the other criteria decide the lane, and the headline says "with waivers". A missing measurement
    is unknown, not known and accepted, so it cannot be waived; nor can an unfinished count of faults, nor a criterion
    marked `waivable: false`. A lane without remaining criteria is INCONCLUSIVE, and so is then the whole. Without `on`
    no waiver is in force.

    A margin that depends on the scheme uses the schemes found by the weights probe (`gate.margins`). If a required
    sign-off is missing, a result that would pass is INCONCLUSIVE, as is a criterion that passes by an implausible gain
    (`gate.headroom`); a signature changes only these. It is also required after more attempts than the policy allows.

    A `where_able` criterion that the reference cannot do is NOT_JUDGED and decides nothing; a lane whose `where_able`
    criteria are all NOT_JUDGED is NOT_JUDGED. If the policy requires that lane, nothing passes (exit code 4).

    A pre-check policy never returns PASS: it finds damage (FAIL) or NOTHING FOUND, which is INCONCLUSIVE with exit code
    3, so that no pipeline releases on it.
    """
    asked_for = {criterion.id for criterion in policy.criteria}
    held = margins_held(policy, measurements)
    policy = _in_order(with_thresholds(with_integrity(held.policy, measurements)))
    evidence = Evidence.of(policy, measurements, failures, blessed, blessed_refused)
    signed_by = tuple(sorted(sign_offs, key=lambda signature: (signature.at, signature.model_dump_json())))
    drifted = drifts(measurements)
    judged = [held.judged(c, lambda held_to: believed(evidence.judged(held_to), drifted)) for c in policy.criteria]
    decided = [accepted(held_back(result), signed_by) for result in _verdicts(policy, judged, evidence)]
    results, notes = apply_waivers(policy, decided, waivers, on, evidence)
    notes += [f"{each.id} is not judged, since {each.reason}" for each in results if each.code == "models-unsuited"]
    blocking = [result for result in results if result.tier == "blocking"]
    unable = _not_judged(policy, results)
    lanes = tuple(_lane_result(lane, blocking, asked_for, unable.get(lane)) for lane in policy.lanes)
    verdict, decisive, waived = _combine(blocking, asked_for)
    lacking = [lane for lane in policy.required or policy.lanes if lane in unable]
    if lacking and verdict is not Verdict.FAIL:
        verdict = Verdict.INCONCLUSIVE
        decisive = tuple(dict.fromkeys([*decisive, *(name for lane in lacking for name in unable[lane])]))
    open_lanes = (lane for lane in lanes if lane.verdict not in (Verdict.PASS, Verdict.NOT_JUDGED))
    unguarded = [] if decisive else [lane.lane for lane in open_lanes]
    if unguarded:
        verdict = Verdict.INCONCLUSIVE
        notes += [f"lane {lane} has no blocking criterion left that was not waived" for lane in unguarded]
    pre_check = policy.purpose == "pre-check"
    nothing_found = pre_check and verdict is Verdict.PASS
    attempts = attempts_of(policy, tried)
    too_many = attempts is not None and attempts.too_many
    awaiting = (require_sign_off or too_many) and not signed_by and verdict is Verdict.PASS and not pre_check
    if awaiting or nothing_found:
        verdict = Verdict.INCONCLUSIVE
    if pre_check:
        lanes = tuple(_of_pre_check(lane) for lane in lanes)
    exit_code = _exit_code(verdict, blocking, lacking)
    word = "NOT MEASURED" if exit_code is ExitCode.NOT_MEASURED else str(verdict)
    headline = _headline(f"{NOTHING_FOUND} (pre-check, not a release)" if nothing_found else word, waived)
    unjudged = [lane.lane for lane in lanes if lane.verdict is Verdict.NOT_JUDGED]
    headline += f", {' and '.join(unjudged)} not judged" if unjudged else ""
    return GateReport(
        policy=policy.name,
        purpose=policy.purpose,
        verdict=verdict,
        headline=headline + (", awaiting sign-off" if awaiting else ""),
        exit_code=int(exit_code),
        decisive=decisive,
        waived=waived,
        lanes=lanes,
        criteria=tuple(results),
        failures=evidence.failures,
        stages=tuple(stages),
        awaiting_sign_off=awaiting,
        signed_by=signed_by,
        attempts=attempts,
        notes=tuple(notes),
    )


def _in_order(policy: Policy) -> Policy:
    """The policy with its criteria sorted as in the report: by tier, probe and id."""
    probes = list(ProbeName)
    criteria = sorted(policy.criteria, key=lambda c: (c.tier == "advisory", probes.index(c.probe), c.id))
    return policy.model_copy(update={"criteria": tuple(criteria)})


def _verdicts(policy: Policy, judged: list[CriterionResult], evidence: Evidence) -> list[CriterionResult]:
    adjusted: dict[str, tuple[float, int]] = {}
    for tier in ("blocking", "advisory"):
        # a criterion that was not measured stays in the family with p = 1, so losing evidence never eases a FAIL
        family = [result for result in judged if result.tier == tier and result.margin.kind != "max_count"]
        p_values = holm([result.p_fail for result in family])
        adjusted |= {r.id: (p_value, len(family)) for r, p_value in zip(family, p_values, strict=True)}
    found = []
    for criterion, result in zip(policy.criteria, judged, strict=True):
        p_value, tested = adjusted.get(result.id, (result.p_fail, 1))
        verdict = _verdict(criterion, result, p_value, policy.alpha, tested)
        if verdict.code == BEYOND_ALONE:
            distance = None if result.lost_family else _corrected_distance(criterion, verdict, policy.alpha, evidence)
            verdict = verdict.model_copy(update={"to_turn": distance})
        found.append(verdict)
    return found


def _corrected_distance(
    criterion: Criterion, result: CriterionResult, alpha: float, evidence: Evidence
) -> float | None:
    """The lower bound's distance inside the limit at the level left by Holm's correction; None without a bound."""
    whole = criterion.model_copy(update={"each_family": False, "margin": result.margin})
    level = alpha * evidence.judged(whole).p_fail / result.p_fail_adjusted
    corrected = evidence.judged(whole.model_copy(update={"confidence": 1.0 - level})).loss_interval
    return None if corrected is None or result.limit is None else max(0.0, result.limit - corrected.lower)


def _why_open(result: CriterionResult, p_fail_adjusted: float, alpha: float, tested: int) -> tuple[str, str]:
    """The code and reason of a criterion neither inside its margin nor outside after Holm over `tested` criteria."""
    if result.reason:
        return result.code, result.reason
    interval, limit = result.loss_interval, result.limit
    needed = f"but FAIL needs p ≤ {alpha:g} after Holm's correction over {tested} criteria, and p is "
    needed += f"{p_fail_adjusted:.2g} ({result.p_fail:.2g} alone)"
    if result.lost_family and result.p_fail <= alpha:
        return BEYOND_ALONE, f"{result.lost_family} alone lies beyond the margin, {needed}"
    if interval is not None and limit is not None and interval.lower > limit:
        return BEYOND_ALONE, f"the interval lies beyond the margin, {needed}"
    return "across-margin", "the interval reaches across the margin"


def _verdict(
    criterion: Criterion, result: CriterionResult, p_fail_adjusted: float, alpha: float, tested: int
) -> CriterionResult:
    if result.verdict is CriterionVerdict.NOT_MEASURED:
        unable = result.code == "models-unsuited" or (criterion.where_able and is_unable(result))
        return result.model_copy(update={"verdict": CriterionVerdict.NOT_JUDGED}) if unable else result
    outside = p_fail_adjusted <= alpha
    lost = result.lost_family if outside else ""
    inside = result.p_pass <= 1.0 - criterion.confidence and not lost
    # no bound decides if the evidence contradicts itself, if a margin is below the noise floor, or for a family
    bound_decides = not (inside and outside) and not result.reason and not lost
    if inside and not outside:
        verdict, code = CriterionVerdict.PASS, "inside-margin"
        reason = f"inside the margin at {criterion.confidence:.1%} confidence"
    elif outside and not inside:
        verdict, code = CriterionVerdict.FAIL, "beyond-margin"
        reason = "outside the margin, beyond what chance explains"
        if result.margin.kind == "max_count":
            code, reason = "faults-counted", "more faults were counted than the margin allows"
        if lost:
            code = "family-beyond-margin"
            reason = f"{lost} alone is outside the margin, beyond what chance explains among all families"
    elif inside and outside:
        verdict, code, reason = CriterionVerdict.INCONCLUSIVE, "contradictory", "the evidence contradicts itself"
    else:
        verdict = CriterionVerdict.INCONCLUSIVE
        code, reason = _why_open(result, p_fail_adjusted, alpha, tested)
    distance = to_turn(result, verdict) if bound_decides else None
    if verdict is CriterionVerdict.INCONCLUSIVE and criterion.on_inconclusive == "fail":
        verdict, code = CriterionVerdict.FAIL, "not-proven"
        reason = f"{reason}, and the policy fails unproven criteria"
    words = None if result.held is None else held_words(result.held)
    reason = reason if words is None else f"{reason}; {words}"
    update = {"verdict": verdict, "code": code, "reason": reason, "lost_family": lost}
    return result.model_copy(update={**update, "p_fail_adjusted": p_fail_adjusted, "to_turn": distance})


def _not_judged(policy: Policy, results: Sequence[CriterionResult]) -> dict[Lane, tuple[str, ...]]:
    """The lanes in which no `where_able` criterion is judged, each with those criteria.

    If the models have no chat template, texts alone judge a lane; if the reference answers wrong, they do not.
    """
    by_id = {result.id: result for result in results}
    lanes = {}
    for lane in policy.lanes:
        able = [c for c in policy.criteria if c.where_able and c.tier == "blocking" and lane in c.lanes]
        unable = {c.id: by_id[c.id].code for c in able if by_id[c.id].verdict is CriterionVerdict.NOT_JUDGED}
        of_answers = [c.id for c in able if c.probe is ProbeName.CANARIES]
        answered = not of_answers or any(unable.get(name) in (None, "reference-unsuited") for name in of_answers)
        if able and (len(unable) == len(able) or not answered):
            lanes[lane] = tuple(c.id for c in able)
    return lanes


def _lane_result(
    lane: Lane, blocking: list[CriterionResult], asked_for: Collection[str], unable: tuple[str, ...] | None
) -> LaneResult:
    concerned = [result for result in blocking if lane in result.lanes]
    verdict, decisive, waived = _combine(concerned, asked_for)
    if unable is not None and verdict is not Verdict.FAIL:
        return LaneResult(lane=lane, verdict=Verdict.NOT_JUDGED, headline="NOT JUDGED", decisive=unable)
    return LaneResult(
        lane=lane,
        verdict=verdict,
        headline=_headline(verdict, waived),
        decisive=decisive,
        nearest=nearest(verdict, [result for result in concerned if not result.waived], decisive),
        waived=waived,
    )


def _combine(
    blocking: list[CriterionResult], asked_for: Collection[str]
) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """The verdict, the criteria that prevented PASS (the clearest first), and the ids set aside by waivers.

    A fault count of zero alone does not pass: at least one criterion in `asked_for` must remain.
    """
    waived = tuple(sorted(result.id for result in blocking if result.waived))
    standing = [r for r in blocking if not r.waived and r.verdict is not CriterionVerdict.NOT_JUDGED]
    failed = [result for result in standing if result.verdict is CriterionVerdict.FAIL]
    if failed:
        return Verdict.FAIL, clearest_first(failed), waived
    not_passed = [result for result in standing if result.verdict is not CriterionVerdict.PASS]
    if not_passed or not any(result.id in asked_for for result in standing):
        return Verdict.INCONCLUSIVE, clearest_first(not_passed), waived
    return Verdict.PASS, (), waived


def _headline(verdict: str, waived: tuple[str, ...]) -> str:
    return f"{verdict} with waivers" if waived else str(verdict)


def _of_pre_check(lane: LaneResult) -> LaneResult:
    """The lane's result in a pre-check, where PASS becomes NOTHING FOUND."""
    if lane.verdict is not Verdict.PASS:
        return lane
    headline = _headline(NOTHING_FOUND, lane.waived)
    return lane.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "headline": headline})


def _exit_code(verdict: Verdict, blocking: list[CriterionResult], lacking: Sequence[Lane]) -> ExitCode:
    if verdict is Verdict.PASS:
        return ExitCode.PASS
    if verdict is Verdict.FAIL:
        return ExitCode.FAIL
    if lacking or any(r.infrastructure and r.verdict is CriterionVerdict.NOT_MEASURED for r in blocking):
        return ExitCode.NOT_MEASURED
    return ExitCode.INCONCLUSIVE
