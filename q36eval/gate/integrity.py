"""What fails a branch whatever a policy asks for: faults that were counted, and that no margin can allow. Pure."""

from collections.abc import Iterable

from q36eval.gate.policy import Criterion, Margin, Policy
from q36eval.records import Measurement, ProbeName

NON_FINITE = "non_finite_tokens"
"""The KL probe's census of scored tokens at which the branch's figures are NaN or infinite.

They enter no mean, so every mean is better than the branch: a policy that judges means alone would pass it.
"""

RULE_ID = "integrity.non-finite-tokens"
SOURCE = "a model that emits NaN or infinity is broken, whatever its scores; every policy holds this rule"


def with_integrity(policy: Policy, measurements: Iterable[Measurement]) -> Policy:
    """The policy, and where tokens without finite figures were counted, the rule that refuses them in all its lanes.

    A policy that has this rule itself, for all of its lanes and for nobody to waive, stays as it is. One that asks for
    them in a laxer way gets the rule counted or not: else losing the count would turn a FAIL into a PASS.
    """
    counted = any((m.probe, m.metric) == (ProbeName.KL, NON_FINITE) and not m.value <= 0 for m in measurements)
    asked_for = any((c.probe, c.metric) == (ProbeName.KL, NON_FINITE) for c in policy.criteria)
    if not (counted or asked_for) or any(_is_the_rule(criterion, policy) for criterion in policy.criteria):
        return policy
    rule = Criterion(
        id=_free_id({criterion.id for criterion in policy.criteria}),
        probe=ProbeName.KL,
        metric=NON_FINITE,
        margin=Margin(kind="max_count", value=0, source=SOURCE),
        lanes=policy.lanes,
        waivable=False,
    )
    return policy.model_copy(update={"criteria": (*policy.criteria, rule)})


def _is_the_rule(criterion: Criterion, policy: Policy) -> bool:
    same = (criterion.probe, criterion.metric, criterion.slice) == (ProbeName.KL, NON_FINITE, "all")
    strict = criterion.margin.kind == "max_count" and criterion.margin.value < 1
    binding = criterion.tier == "blocking" and not criterion.waivable and set(criterion.lanes) == set(policy.lanes)
    return same and strict and binding


def _free_id(taken: set[str]) -> str:
    name = RULE_ID
    while name in taken:
        name += ".own"
    return name
