"""When enough was evaluated: of a task, and of the whole run. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date

from q36eval.gate.headroom import may_be_anomalous
from q36eval.gate.integrity import with_integrity
from q36eval.gate.judgement import judge
from q36eval.gate.margins import margins_held, with_thresholds
from q36eval.gate.noise import floor_of
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict, Waiver
from q36eval.gate.waivers import in_force
from q36eval.records import Lane, Measurement, ProbeName
from q36eval.stats import resolved_early


@dataclass(frozen=True)
class PolicyRule:
    """Determines which measurements need no more items for a policy's criteria, and when its verdict is final.

    A criterion is resolved if `decide` would return PASS or FAIL for it on the present evidence, whatever the others
    show (`q36eval.stats.resolved_early`). Only evidence with a schedule may be looked at repeatedly, so nothing else is
    ever resolved early. `waivers` are those that `decide` will receive, on the day `on`, and `blessed` the blessed
    run's measurements.
    """

    policy: Policy
    waivers: tuple[Waiver, ...] = ()
    on: date | None = None
    blessed: tuple[Measurement, ...] = ()

    def judged(self, probe: ProbeName) -> frozenset[str]:
        """Keys of that probe's measurements that the policy judges, advisory criteria included."""
        return frozenset(criterion.key for criterion in self.policy.criteria if criterion.probe == probe)

    def resolved_early(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        """The keys of the measurements whose criteria are all resolved."""
        by_key = {measurement.key: measurement for measurement in measurements}
        judged = [criterion for criterion in self.policy.criteria if criterion.key in by_key]
        still_open = {criterion.key for criterion in judged if not self._is_resolved(criterion, by_key[criterion.key])}
        return frozenset(criterion.key for criterion in judged) - still_open

    def decided(self, measurements: Sequence[Measurement], complete: Collection[ProbeName]) -> tuple[str, ...]:
        """The criteria by which every lane has failed, whatever later evidence shows; empty while a lane is open."""
        failed = failed_lanes(self.policy, measurements, complete, self.waivers, self.on, self.blessed)
        if set(failed) != set(self.policy.lanes):
            return ()
        return tuple(sorted({name for names in failed.values() for name in names}))

    def _is_resolved(self, criterion: Criterion, measurement: Measurement) -> bool:
        if not measurement.laid_out or criterion.margin.schemes:  # their margin depends on the weights
            return False
        result = judge(criterion, [measurement], [], blessed=_of(criterion, self.blessed))
        if result.verdict is CriterionVerdict.NOT_MEASURED:
            return False
        shared = _sharing_alpha(self.policy, criterion)
        if may_be_anomalous(result):  # continue until the gain is proven or has disappeared
            return False
        return resolved_early(result, criterion.confidence, self.policy.alpha, shared) != "open"


def failed_lanes(
    policy: Policy,
    measurements: Sequence[Measurement],
    complete: Collection[ProbeName],
    waivers: Sequence[Waiver] = (),
    on: date | None = None,
    blessed: Sequence[Measurement] = (),
) -> dict[Lane, tuple[str, ...]]:
    """The lanes that `decide` will call FAIL whatever is still measured, each with the deciding criteria.

    `complete` are the probes whose evaluation is finished. A counted fault stays counted, so it decides its lanes at
    once. Any other figure decides when its probe is complete, or, if it may be looked at after every block, only beyond
    Bonferroni's bound, which Holm's adjusted p-value never exceeds whatever the other criteria show. Nothing decides a
    lane that a waiver might set aside. A lane never passes early: PASS needs every criterion.
    """
    rules = with_thresholds(with_integrity(margins_held(policy, measurements).failing, measurements))
    by_key: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        by_key.setdefault(measurement.key, []).append(measurement)
    failed: dict[Lane, list[str]] = {}
    for criterion in rules.criteria:
        evidence = by_key.get(criterion.key, [])
        excused = criterion.waivable and any(_concerns(criterion, waiver) for waiver in in_force(waivers, on))
        if criterion.tier != "blocking" or len(evidence) != 1 or excused:
            continue
        whole = criterion.probe in complete
        if not (whole or criterion.margin.kind == "max_count" or evidence[0].laid_out):
            continue
        floor = floor_of(criterion, measurements)
        result = judge(criterion, evidence, [], floor, _of(criterion, blessed))
        if _stays_failed(rules, criterion, result, whole):
            for lane in criterion.lanes:
                failed.setdefault(lane, []).append(criterion.id)
    return {lane: tuple(sorted(names)) for lane, names in failed.items()}


def _of(criterion: Criterion, measurements: Sequence[Measurement]) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.key == criterion.key]


def _stays_failed(policy: Policy, criterion: Criterion, result: CriterionResult, whole: bool) -> bool:
    if result.verdict is CriterionVerdict.NOT_MEASURED:
        return False
    if criterion.margin.kind == "max_count":
        return result.p_fail <= policy.alpha
    shared = _sharing_alpha(policy, criterion)
    answer = resolved_early(result, criterion.confidence, policy.alpha, shared)
    return answer == "fail" or (answer == "open" and whole and criterion.on_inconclusive == "fail")


def _sharing_alpha(policy: Policy, criterion: Criterion) -> int:
    """The number of criteria in Holm's correction: those of the tier that are not counts."""
    return max(1, sum(other.tier == criterion.tier and other.margin.kind != "max_count" for other in policy.criteria))


def _concerns(criterion: Criterion, waiver: Waiver) -> bool:
    """Whether the waiver could excuse the criterion at the end: a superset, so that nothing stops early by mistake."""
    named = waiver.criterion is None or waiver.criterion == criterion.id
    sliced = waiver.slice is None or waiver.slice == criterion.slice
    return named and sliced and (waiver.canary is None or criterion.probe is ProbeName.CANARIES)
