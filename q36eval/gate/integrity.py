"""What fails a branch whatever a policy asks for: faults that were counted, and that no margin can allow. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from q36eval.gate.policy import NON_FINITE, Criterion, Margin, Policy
from q36eval.records import Measurement, ProbeName

DAMAGE = "integrity_faults"
"""The weights probe's census of what keeps a checkpoint from being read as what it says it is."""


@dataclass(frozen=True)
class _Rule:
    """One census that no policy allows to be more than zero."""

    id: str
    probe: ProbeName
    metric: str
    source: str

    @property
    def judges(self) -> tuple[ProbeName, str]:
        return self.probe, self.metric


RULES = (
    _Rule(
        id="integrity.non-finite-tokens",
        probe=ProbeName.KL,
        metric=NON_FINITE,  # they enter no mean, so that a policy that judges means alone would pass the branch
        source="a model that emits NaN or infinity is broken, whatever its scores; every policy holds this rule",
    ),
    _Rule(
        id="integrity.damaged-checkpoint",
        probe=ProbeName.WEIGHTS,
        metric=DAMAGE,
        source="a damaged checkpoint is not the branch that was asked for; every policy holds this rule",
    ),
)


def with_integrity(policy: Policy, measurements: Iterable[Measurement]) -> Policy:
    """The policy, and where one of these faults was counted, the rule that refuses it in all its lanes.

    A policy that has this rule itself, for all of its lanes and for nobody to waive, stays as it is. One that asks for
    them in a laxer way gets the rule counted or not: else losing the count would turn a FAIL into a PASS.
    """
    counted = {(m.probe, m.metric) for m in measurements if not m.value <= 0}
    asked_for = {(c.probe, c.metric) for c in policy.criteria}
    added: list[Criterion] = []
    for rule in RULES:
        lacking = not any(_is_the_rule(rule, criterion, policy) for criterion in policy.criteria)
        if rule.judges in counted | asked_for and lacking:
            added.append(_criterion(rule, policy))
    return policy.model_copy(update={"criteria": (*policy.criteria, *added)}) if added else policy


def _criterion(rule: _Rule, policy: Policy) -> Criterion:
    return Criterion(
        id=_free_id(rule.id, policy.criteria),
        probe=rule.probe,
        metric=rule.metric,
        margin=Margin(kind="max_count", value=0, source=rule.source),
        lanes=policy.lanes,
        waivable=False,
    )


def _is_the_rule(rule: _Rule, criterion: Criterion, policy: Policy) -> bool:
    same = (criterion.probe, criterion.metric, criterion.slice) == (*rule.judges, "all")
    strict = criterion.margin.kind == "max_count" and criterion.margin.value < 1
    binding = criterion.tier == "blocking" and not criterion.waivable and set(criterion.lanes) == set(policy.lanes)
    return same and strict and binding


def _free_id(name: str, criteria: Sequence[Criterion]) -> str:
    taken = {criterion.id for criterion in criteria}
    while name in taken:
        name += ".own"
    return name
