"""When a task has been asked enough: every criterion over it would be decided by the evidence so far. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.gate.judge import judge
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionVerdict
from q36eval.records import Measurement, ProbeName
from q36eval.stats import settled


@dataclass(frozen=True)
class PolicyRule:
    """Says which measurements a policy's criteria need no more items for.

    A criterion is settled when `decide` would call it PASS or FAIL on this very evidence, whatever the others show
    (`q36eval.stats.settled`). Only evidence with a schedule may be looked at as often as one likes, so nothing else is
    ever settled early.
    """

    policy: Policy

    def judged(self, probe: ProbeName) -> frozenset[str]:
        """Keys of the measurements that the policy judges of that probe, advisory criteria among them."""
        return frozenset(criterion.key for criterion in self.policy.criteria if criterion.probe == probe)

    def settled(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        """Those of their keys on which every criterion is settled."""
        found = {measurement.key: measurement for measurement in measurements}
        judged = [criterion for criterion in self.policy.criteria if criterion.key in found]
        still_open = {criterion.key for criterion in judged if not self._is_settled(criterion, found[criterion.key])}
        return frozenset(criterion.key for criterion in judged) - still_open

    def _is_settled(self, criterion: Criterion, measurement: Measurement) -> bool:
        if measurement.clusters is None or measurement.clusters.schedule is None:
            return False
        result = judge(criterion, [measurement], [])
        if result.verdict is CriterionVerdict.NOT_MEASURED:
            return False
        sharing = [
            other for other in self.policy.criteria if other.tier == criterion.tier and other.margin.kind != "max_count"
        ]
        return settled(result, criterion.confidence, self.policy.alpha, max(1, len(sharing))) != "open"
