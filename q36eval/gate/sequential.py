"""When a task has been asked enough: every criterion over it would be decided by the evidence so far. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.gate.judge import judge
from q36eval.gate.policy import Criterion, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Measurement, ProbeName


@dataclass(frozen=True)
class PolicyRule:
    """Says which measurements a policy's criteria need no more items for.

    A criterion is settled when `decide` would call it PASS or FAIL on this very evidence, whatever the others show: the
    test of its margin passes at its confidence, or fails at alpha divided by the number of criteria that share it,
    which is never laxer than Holm's step. Betting tests may be looked at as often as one likes; others may not, so
    only bounded figures are ever settled early.
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
        if measurement.clusters is None or measurement.clusters.bounds is None:
            return False
        result = judge(criterion, [measurement], [])
        return result.verdict is not CriterionVerdict.NOT_MEASURED and self._would_stand(criterion, result)

    def _would_stand(self, criterion: Criterion, result: CriterionResult) -> bool:
        """Whether it passes without a doubt, or fails whatever Holm's correction makes of the others."""
        if result.p_pass <= 1.0 - criterion.confidence:
            return result.p_fail > self.policy.alpha
        sharing = [
            other for other in self.policy.criteria if other.tier == criterion.tier and other.margin.kind != "max_count"
        ]
        return result.p_fail <= self.policy.alpha / max(1, len(sharing))
