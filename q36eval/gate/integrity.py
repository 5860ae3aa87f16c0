"""What fails a branch whatever a policy asks for: faults that no margin can allow. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from q36eval.gate.policy import NON_FINITE, Criterion, Margin, Policy
from q36eval.gate.report import CriterionResult, CriterionVerdict
from q36eval.records import Measurement, ProbeName

ENGINE_DRIFT = "engine_drift"
"""A probe's census of first items that came out otherwise when they were evaluated again at the end of the run.

Its `reference_value` is how many the engine's own scatter explains. Beyond that the engine is not what it was: nothing
that it answered is evidence on the branch, for it or against it.
"""


@dataclass(frozen=True)
class _Rule:
    """One census that no policy allows to be more than `allowed`."""

    id: str
    title: str
    probe: ProbeName
    metric: str
    source: str
    allowed: float = 0.0


RULES = (
    # such tokens enter no mean, so that a policy that judges means alone would pass the branch
    _Rule("outputs-finite", "Finite outputs", ProbeName.KL, NON_FINITE, "NaN or infinity is no distribution"),
    _Rule("checkpoint-intact", "Checkpoint intact", ProbeName.WEIGHTS, "integrity_faults", "else it is another model"),
)


def drifts(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The censuses that show an engine which does not repeat itself, or does not answer any more."""
    censuses = {m.key: m for m in measurements if m.metric == ENGINE_DRIFT}
    return tuple(m for _, m in sorted(censuses.items()) if not m.value + m.counts.errored <= (m.reference_value or 0.0))


def believed(result: CriterionResult, drifted: Sequence[Measurement]) -> CriterionResult:
    """The result; not measured where it rests on what an engine that does not repeat itself answered."""
    if not drifted or result.probe is ProbeName.WEIGHTS:
        return result
    update = {
        "verdict": CriterionVerdict.NOT_MEASURED,
        "code": "engine-drift",
        "reason": f"the engine does not repeat itself: {'; '.join(m.note for m in drifted)}",
        "infrastructure": True,
    }
    return result.model_copy(update=update | dict.fromkeys(("p_pass", "p_fail", "p_fail_adjusted"), 1.0))


def with_integrity(policy: Policy, measurements: Sequence[Measurement] = ()) -> Policy:
    """The policy, and of each probe by which it blocks, the rule that refuses its faults in all lanes.

    Its count must then be there. A counted fault is refused whatever is judged; a rule that is there is not doubled.
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
    """The rule that such a run is not measured."""
    source = "answers of an engine that is not what it was say nothing of the branch"
    name = f"integrity.{drift.probe}-engine-drift"
    return _Rule(name, "The engine repeats itself", drift.probe, ENGINE_DRIFT, source, drift.reference_value or 0.0)


def _criterion(rule: _Rule, policy: Policy) -> Criterion:
    """The rule in all lanes of the policy."""
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
