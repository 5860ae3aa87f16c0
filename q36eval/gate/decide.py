"""The decision: a pure function from a policy and what was measured to a report."""

from collections.abc import Sequence
from datetime import date

from q36eval.errors import ExitCode
from q36eval.gate.integrity import with_integrity
from q36eval.gate.judge import judge
from q36eval.gate.noise import floor_of
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict, GateReport, LaneResult, SignOff, Stage, Waiver
from q36eval.records import Lane, Measurement, ProbeFailure, Verdict
from q36eval.stats import holm


def decide(
    policy: Policy,
    measurements: Sequence[Measurement],
    waivers: Sequence[Waiver] = (),
    failures: Sequence[ProbeFailure] = (),
    *,
    on: date | None = None,
    blessed: Sequence[Measurement] = (),
    stages: Sequence[Stage] = (),
    require_sign_off: bool = False,
    sign_offs: Sequence[SignOff] = (),
) -> GateReport:
    """Judge every criterion, every lane and the whole. Same input, same report; no I/O, no clock.

    `blessed` are the measurements of the run that the branch was last accepted with, `stages` what was asked in which
    order (passed on into the report), `sign_offs` the signatures under this very run.

    PASS needs every blocking criterion to pass (an intersection-union test). FAIL needs one blocking criterion that is
    convincingly outside its margin after Holm over its tier; counted faults (`max_count`) stand outside Holm, one is
    enough. What was not measured never passes. Exit code: a proven FAIL 1, then 4 where the engine or a crashed probe
    kept a blocking criterion from being measured, else 3. A margin below the noise floor proves nothing: the gate
    refuses it before the branch is measured, and should history hold one, its criterion is INCONCLUSIVE. Tokens whose
    figures are not finite fail every lane, whether the policy asks for them or not.

    A waiver in force on the day `on` sets aside a FAIL or INCONCLUSIVE criterion: a release manager wants to see what
    was found, who excused it and until when, and wants the pipeline to go on. So the criterion keeps its verdict and
    carries the waiver, the lane is judged by the others, and the headline says "with waivers". What was not measured
    is unknown, not known and accepted, so it cannot be waived; nor can a criterion marked `waivable: false`; and a lane
    of which nothing is left is INCONCLUSIVE. Without `on` no waiver is in force.
    """
    policy = with_integrity(policy, measurements)
    judged = _judge_all(policy, measurements, failures)
    decided = _verdicts(policy, judged)
    results, notes = _apply_waivers(policy, decided, waivers, on)
    lanes = tuple(_lane_result(lane, results) for lane in policy.lanes)
    blocking = [result for result in results if result.tier == "blocking"]
    verdict, decisive, waived = _combine(blocking)
    return GateReport(
        policy=policy.name,
        verdict=verdict,
        headline=_headline(verdict, waived),
        exit_code=int(_exit_code(verdict, blocking)),
        decisive=decisive,
        waived=waived,
        lanes=lanes,
        criteria=tuple(results),
        failures=tuple(sorted(failures, key=lambda failure: (failure.probe, failure.kind, failure.reason))),
        stages=tuple(stages),
        notes=tuple(notes),
    )


def _judge_all(
    policy: Policy, measurements: Sequence[Measurement], failures: Sequence[ProbeFailure]
) -> list[CriterionResult]:
    by_key: dict[str, dict[str, Measurement]] = {}
    for measurement in measurements:
        # identical repeats (a resumed run) are one measurement
        by_key.setdefault(measurement.key, {})[measurement.model_dump_json()] = measurement
    return [
        judge(
            criterion,
            list(by_key.get(criterion.key, {}).values()),
            sorted((f for f in failures if f.probe == criterion.probe), key=lambda f: (f.kind, f.reason)),
            floor_of(criterion, measurements),
        )
        for criterion in policy.criteria
    ]


def _verdicts(policy: Policy, judged: list[CriterionResult]) -> list[CriterionResult]:
    adjusted: dict[str, float] = {}
    for tier in ("blocking", "advisory"):
        # a criterion that was not measured stays in the family with p = 1, so losing evidence never eases a FAIL
        family = [result for result in judged if result.tier == tier and result.margin.kind != "max_count"]
        adjusted |= zip((r.id for r in family), holm([r.p_fail for r in family]), strict=True)
    return [
        _verdict(criterion, result, adjusted.get(result.id, result.p_fail), policy.alpha)
        for criterion, result in zip(policy.criteria, judged, strict=True)
    ]


def _verdict(criterion: Criterion, result: CriterionResult, p_fail_adjusted: float, alpha: float) -> CriterionResult:
    if result.verdict is CriterionVerdict.NOT_MEASURED:
        return result
    inside = result.p_pass <= 1.0 - criterion.confidence
    outside = p_fail_adjusted <= alpha
    if inside and not outside:
        verdict, reason = CriterionVerdict.PASS, f"inside the margin at {criterion.confidence:.1%} confidence"
    elif outside and not inside:
        verdict, reason = CriterionVerdict.FAIL, "outside the margin, beyond what chance explains"
        if result.margin.kind == "max_count":
            reason = "counted more than the margin allows"
    elif inside and outside:
        verdict, reason = CriterionVerdict.INCONCLUSIVE, "the evidence contradicts itself"
    else:
        # a reason was given before, where a margin lies below the noise floor
        verdict, reason = CriterionVerdict.INCONCLUSIVE, result.reason or "the interval reaches across the margin"
    if verdict is CriterionVerdict.INCONCLUSIVE and criterion.on_inconclusive == "fail":
        verdict, reason = CriterionVerdict.FAIL, f"{reason}, and the policy refuses what is not proven"
    return result.model_copy(update={"verdict": verdict, "reason": reason, "p_fail_adjusted": p_fail_adjusted})


def _apply_waivers(
    policy: Policy, results: list[CriterionResult], waivers: Sequence[Waiver], on: date | None
) -> tuple[list[CriterionResult], list[str]]:
    criteria = {criterion.id: criterion for criterion in policy.criteria}
    by_id = {result.id: result for result in results}
    notes: set[str] = set()
    for waiver in sorted(waivers, key=lambda w: (w.expires, w.owner, w.reason), reverse=True):
        subject = f"the waiver of {waiver.criterion} by {waiver.owner}"
        if waiver.criterion is None or waiver.criterion not in criteria:
            notes.add(f"{subject} has no effect: the policy has no such criterion")
        elif on is None or on > waiver.expires:
            notes.add(f"{subject} is not in force: it expired after {waiver.expires}")
        elif not criteria[waiver.criterion].waivable:
            notes.add(f"{subject} has no effect: the policy lets nobody waive this criterion")
        elif by_id[waiver.criterion].verdict is CriterionVerdict.NOT_MEASURED:
            notes.add(f"{subject} has no effect: what was not measured cannot be waived")
        elif by_id[waiver.criterion].verdict is not CriterionVerdict.PASS and not by_id[waiver.criterion].waived:
            by_id[waiver.criterion] = by_id[waiver.criterion].model_copy(update={"waived_by": (waiver,)})
    return [by_id[result.id] for result in results], sorted(notes)


def _lane_result(lane: Lane, results: list[CriterionResult]) -> LaneResult:
    verdict, decisive, waived = _combine([r for r in results if r.tier == "blocking" and lane in r.lanes])
    return LaneResult(lane=lane, verdict=verdict, headline=_headline(verdict, waived), decisive=decisive, waived=waived)


def _combine(blocking: list[CriterionResult]) -> tuple[Verdict, tuple[str, ...], tuple[str, ...]]:
    """Verdict, the criteria that made it anything but PASS, and those set aside by waivers; ids are sorted."""
    waived = tuple(sorted(result.id for result in blocking if result.waived))
    standing = [result for result in blocking if not result.waived]
    failed = tuple(sorted(r.id for r in standing if r.verdict is CriterionVerdict.FAIL))
    if failed:
        return Verdict.FAIL, failed, waived
    open_ = tuple(sorted(r.id for r in standing if r.verdict is not CriterionVerdict.PASS))
    if open_ or not standing:
        return Verdict.INCONCLUSIVE, open_, waived
    return Verdict.PASS, (), waived


def _headline(verdict: Verdict, waived: tuple[str, ...]) -> str:
    return f"{verdict} with waivers" if waived else str(verdict)


def _exit_code(verdict: Verdict, blocking: list[CriterionResult]) -> ExitCode:
    if verdict is Verdict.PASS:
        return ExitCode.PASS
    if verdict is Verdict.FAIL:
        return ExitCode.FAIL
    if any(r.infrastructure and r.verdict is CriterionVerdict.NOT_MEASURED for r in blocking):
        return ExitCode.NOT_MEASURED
    return ExitCode.INCONCLUSIVE
