"""Faults that fail a branch under every policy, because no margin can allow them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from q36eval.gate.policy import NON_FINITE, Criterion, Margin, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Measurement, ProbeName

ENGINE_DRIFT = "engine_drift"
"""A probe's count of first items whose answers changed when they were evaluated again at the end of the run.

Its `reference_value` is the number explained by the engine's own nondeterminism. Above it the engine has changed: none
of its answers is evidence for or against the branch.
"""


@dataclass(frozen=True)
class _Rule:
    """A count that no policy allows to exceed `allowed`."""

    id: str
    title: str
    probe: ProbeName
    metric: str
    source: str
    allowed: float = 0.0


RULES = (
    # such tokens enter no mean, so a policy that judges only means would pass the branch
    _Rule("outputs-finite", "Finite outputs", ProbeName.KL, NON_FINITE, "NaN or infinity is no distribution"),
    _Rule("checkpoint-intact", "Checkpoint intact", ProbeName.WEIGHTS, "integrity_faults", "else it is another model"),
)


def drifts(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The counts of an engine that changed or failed more answers than its own nondeterminism explains."""
    censuses = {m.key: m for m in measurements if m.metric == ENGINE_DRIFT}
    return tuple(m for _, m in sorted(censuses.items()) if not m.value + m.counts.errored <= (m.reference_value or 0.0))


def believed(result: CriterionResult, drifted: Sequence[Measurement]) -> CriterionResult:
    """The result; NOT_MEASURED if it depends on an engine that changed more answers than nondeterminism explains."""
    if not drifted or result.probe is ProbeName.WEIGHTS:
        return result
    update = {
        "verdict": CriterionVerdict.NOT_MEASURED,
        "code": "engine-drift",
        "reason": f"the engine is not what it was: {'; '.join(m.note for m in drifted)}",
        "infrastructure": True,
    }
    return result.model_copy(update=update | dict.fromkeys(("p_pass", "p_fail", "p_fail_adjusted"), 1.0))


def with_integrity(policy: Policy, measurements: Sequence[Measurement] = ()) -> Policy:
    """The policy plus, for each probe with a blocking criterion, the rules that refuse its faults in all lanes.

    Their counts are then required. A counted fault always fails; an existing rule is not added twice.
    """
    counted = {(m.probe, m.metric) for m in measurements if not m.value <= 0}
    added = [_criterion(_repeats_itself(drift), policy) for drift in drifts(measurements)]
    for rule in RULES:
        own = [criterion for criterion in policy.criteria if criterion.probe is rule.probe]
        lacking = not any(_is_the_rule(rule, criterion, policy) for criterion in own)
        asked_for = any(c.tier == "blocking" or c.metric == rule.metric for c in own)
        if lacking and (asked_for or (rule.probe, rule.metric) in counted):
            added.append(_criterion(rule, policy))
    return policy.model_copy(update={"criteria": (*policy.criteria, *added)}) if added else policy


def _repeats_itself(drift: Measurement) -> _Rule:
    """The rule under which such a run counts as not measured."""
    source = "answers of an engine that is not what it was say nothing of the branch"
    name = f"integrity.{drift.probe}-engine-drift"
    return _Rule(name, "The engine repeats itself", drift.probe, ENGINE_DRIFT, source, drift.reference_value or 0.0)


def _criterion(rule: _Rule, policy: Policy) -> Criterion:
    """The rule as a criterion in all lanes of the policy."""
    return Criterion(
        id=rule.id + ".own" * sum(criterion.id.startswith(rule.id) for criterion in policy.criteria),
        title=rule.title,
        probe=rule.probe,
        metric=rule.metric,
        margin=Margin(kind="max_count", value=rule.allowed, source=f"{rule.source}; every policy holds this rule"),
        lanes=policy.lanes,
        waivable=False,
    )


def _is_the_rule(rule: _Rule, criterion: Criterion, policy: Policy) -> bool:
    same = (criterion.probe, criterion.metric, criterion.slice) == (rule.probe, rule.metric, "all")
    strict = criterion.margin.kind == "max_count" and criterion.margin.value < 1
    binding = criterion.tier == "blocking" and not criterion.waivable and set(criterion.lanes) == set(policy.lanes)
    return same and strict and binding
