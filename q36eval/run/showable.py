"""Whether the items can show what a policy asks for at all: an identical branch must pass."""

from collections.abc import Iterator, Mapping, Sequence

from q36eval.errors import UsageError
from q36eval.gate import Criterion, CriterionResult, CriterionVerdict, Policy
from q36eval.gate.judge import judge
from q36eval.probes import Captures, Digest
from q36eval.records import ItemOutcome, Measurement
from q36eval.run.items import Work
from q36eval.stats import MAX_ERRORED_SHARE


def refuse_unshowable(policy: Policy, works: Sequence[Work], captures: Captures) -> None:
    """Hold every blocking criterion over sampled items against a branch that answers just as the reference did.

    Raises:
        UsageError: one of them would not pass even then; says what these items can show at best.
    """
    blocking = [criterion for criterion in policy.criteria if criterion.tier == "blocking"]
    for work in works:
        keys = [criterion.key for criterion in blocking if criterion.probe == work.probe.name]
        figures = {measurement.key: measurement for measurement in _lossless(work, captures, keys)}
        for criterion in blocking:
            if criterion.key in figures:
                _check(policy, criterion, figures[criterion.key])


def _lossless(work: Work, captures: Captures, keys: Sequence[str]) -> Iterator[Measurement]:
    """The measurements of those keys of a branch that is the reference."""
    probe = work.probe
    outcomes = lossless_outcomes(work, captures[probe.name]) if keys and work.failed is None else []
    if not outcomes:
        return
    figures = list(probe.look(outcomes, keys))
    yield from figures
    rest = set(keys) - {measurement.key for measurement in figures}
    if rest:  # a mean of means, a perplexity of too few documents
        yield from (measurement for measurement in work.probe.summarize(outcomes) if measurement.key in rest)


def lossless_outcomes(work: Work, digests: Mapping[str, Digest]) -> list[ItemOutcome]:
    """The outcomes of a branch that is the reference; none where the probe cannot say. Missing answers are errored."""
    missing = Digest(error="the reference could not be measured on this item")
    outcomes = []
    for item in work.items:
        outcome = work.probe.lossless(item, digests.get(item.key, missing))
        if outcome is None:
            return []
        outcomes.append(outcome)
    return outcomes


def _check(policy: Policy, criterion: Criterion, measurement: Measurement) -> None:
    counts = measurement.counts
    if counts.errored > MAX_ERRORED_SHARE * counts.total:
        return  # that the reference could not be measured is what the verdict must say
    result = judge(criterion.model_copy(update={"informative": None}), [measurement], [])
    demand = f"{criterion.id} for {criterion.margin.kind} {criterion.margin.value:g} on {criterion.key}"
    if result.verdict is CriterionVerdict.NOT_MEASURED:
        raise UsageError(
            "policy-cannot-pass",
            f"The policy {policy.name} requires {demand}, which {counts.scored} scored units of these items cannot "
            f"show, not even of the reference itself: {result.reason}.",
        )
    if result.p_pass > 1.0 - criterion.confidence:
        raise UsageError(
            "policy-cannot-pass",
            f"The policy {policy.name} requires {demand}, which {counts.scored} scored units of these items cannot "
            f"show: a branch that answers each as the reference does could only be held to {_best(result)}; evaluate "
            f"more items or widen the margin.",
        )


def _best(result: CriterionResult) -> str:
    """The bound of the figure that would have to lie inside the margin, in the margin's own terms."""
    if result.figure_interval is None:
        return "nothing"
    at_least = result.margin.kind in ("min_recovery", "min_retention")
    return f"{result.figure_interval.lower if at_least else result.figure_interval.upper:.4g}"
