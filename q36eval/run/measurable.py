"""What can be measured of a policy: whether a criterion can ever pass, and what the declared items can show of it.

Computed from what the probes declare, so that no policy need type it.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from q36eval.errors import UsageError
from q36eval.gate import Criterion, Policy
from q36eval.gate.judge import clusters_of_kind
from q36eval.metrics import METRICS, metric_of
from q36eval.records import DeclaredFigure, Direction, ProbeName, Schedule
from q36eval.run.declared import Declared, suites_with
from q36eval.run.weights import declared_figures as of_weights
from q36eval.stats import (
    ESTIMATORS_OF_KIND,
    GREATEST_LIMIT,
    Power,
    as_expected,
    can_show,
    least_clusters,
    power,
    tightest_limit,
    unseen_share,
)

ASSUMED_SCORE = METRICS[ProbeName.EVALS, "accuracy"].assumed_mean or 0.0
"""Share that the reference is taken to get right where nothing of it was captured yet."""

FLIPS = 0.04
"""Share of changed answers, half of them each way, of the branch without loss that is told of."""

BLOCK_ITEMS = 300
"""Items between two looks where the figure may be looked at early, as suites ask them."""


@dataclass(frozen=True)
class Shown:
    """What so many `items` show when the reference scores `score` in the mean."""

    items: int
    score: float
    power: Power

    @property
    def sentence(self) -> str:
        """In words, for whoever reads the policy."""
        items = f"{self.items:,} items, taking the reference to score {self.score:.0%}: "
        if not self.power.can_show:
            return items + "not even a branch that answers all as the reference does can pass"
        lost = self.power.detected.get(0.95)
        failed = (
            "no loss is failed 19 times in 20" if lost is None else f"a loss of {lost:.1%} is failed 19 times in 20"
        )
        return (
            f"{items}a branch without loss passes 19 times in 20 while it changes up to {self.power.most_flips:.1%} of "
            f"the answers, {self.power.passes:.0%} of them pass at {FLIPS:.0%}, and there {failed}"
        )


def power_of(criterion: Criterion, policy: Policy, figure: DeclaredFigure) -> Shown | None:
    """By simulation, seeded; None where chance moves nothing, or it is not known how many items there are.

    Items are taken to weigh the same: where several share a source they show less (`q36eval evals --plan` knows).
    """
    score = metric_of(figure.probe, figure.metric).assumed_mean
    kinds = ("min_recovery", "max_increase")
    if figure.items is None or score is None or criterion.margin.kind not in kinds:
        return None
    sharing = sum(other.tier == criterion.tier and other.margin.kind != "max_count" for other in policy.criteria)
    looks = figure.estimator == "paired_mean"
    schedule = Schedule(largest=1, blocks=tuple(i // BLOCK_ITEMS for i in range(figure.items))) if looks else None
    shown = power(
        as_expected([1] * figure.items, score, schedule),
        criterion.margin,
        confidence=criterion.confidence,
        alpha=policy.alpha,
        criteria=max(1, sharing),
        direction=figure.direction,
        flips=FLIPS,
        estimator=figure.estimator,
    )
    reading = score if figure.direction is Direction.HIGHER_IS_BETTER else 1.0 - score
    return Shown(figure.items, reading, shown)


LOWER, HIGHER = Direction.LOWER_IS_BETTER, Direction.HIGHER_IS_BETTER
NAMED = 12
"""So many slices of a metric are named in a sentence, the likest first."""


def never_passes(criterion: Criterion, declared: Declared) -> str | None:
    """Why nothing that will be measured could make the criterion PASS; None where it could, or is not known yet."""
    figure = figure_of(criterion, declared)
    if figure is None:
        return unmeasured(criterion, declared)
    return unjudgeable(criterion, figure) or too_few(criterion, figure, declared)


def figure_of(criterion: Criterion, declared: Declared) -> DeclaredFigure | None:
    """The figure that it judges; None where none is declared."""
    return declared.by_key.get(criterion.key)


def unmeasured(criterion: Criterion, declared: Declared) -> str | None:
    """Why the figure is not yielded: what is instead, and which shipped suite has it. None where it may be."""
    probe, metric, name = criterion.probe, criterion.metric, criterion.slice
    if probe not in declared.probes or criterion.key in declared.by_key or declared.open(probe, metric, name):
        return None
    if not declared.of(probe, metric):
        judged = dict.fromkeys(f.metric for f in declared.of(probe) if f.estimator != "derived")
        return f"the {probe} probe gives no metric {metric!r}; it gives {', '.join(judged) or 'nothing here'}"
    slices = [figure.slice for figure in declared.of(probe, metric)]
    alike = [part for part in slices if "=" in name and part.startswith(name.partition("=")[0])]
    near = list(dict.fromkeys([*alike, *difflib.get_close_matches(name, slices, NAMED), *slices]))
    more = f" and {len(near) - NAMED} more" if len(near) > NAMED else ""
    subject = {
        ProbeName.WEIGHTS: "the weights probe gives",
        ProbeName.KL: f"the texts of {declared.suite} give",
        ProbeName.EVALS: f"the suite {declared.suite} has",
        ProbeName.CANARIES: f"the canaries of {declared.suite} for {declared.family} give",
        ProbeName.SERVED: "the served probe gives",
    }[probe]
    having = suites_with(criterion.key, declared.suite) if probe is ProbeName.EVALS else []
    elsewhere = f"; {', '.join(having)} would have it" if having else ""
    return f"{subject} no {metric} of {name!r}, but of {', '.join(near[:NAMED])}{more}{elsewhere}"


def unjudgeable(criterion: Criterion, figure: DeclaredFigure) -> str | None:
    """Why no value whatever of that figure could make the criterion PASS; None where some could."""
    margin, metric = criterion.margin, criterion.metric
    if figure.estimator == "derived":
        return f"{metric} is computed from another measurement and no evidence of its own; judge that one"
    if figure.estimator not in ESTIMATORS_OF_KIND[margin.kind]:
        wrong_way = {HIGHER: ("max_value", "max_count"), LOWER: ("min_recovery",)}.get(figure.direction, ())
        fitting = [kind for kind, known in ESTIMATORS_OF_KIND.items() if figure.estimator in known]
        named = ", ".join(kind for kind in fitting if kind not in wrong_way)
        return f"a {margin.kind} margin does not judge {metric}; {named or 'no margin'} does"
    if margin.kind == "max_value" and figure.direction is HIGHER:
        return f"of {metric} higher is better, and a max_value margin requires less of it"
    if margin.kind == "max_count" and figure.direction is HIGHER:
        return f"of {metric} more is no fault, and a max_count margin counts faults"
    if margin.kind == "min_recovery" and figure.direction is LOWER:
        return f"of {metric} lower is better, so nothing is recovered"
    if margin.kind == "min_recovery" and figure.estimator == "paired_mean" and not figure.bounded:
        return f"{metric} has no bounds, so its recovery has no test; use max_increase"
    if figure.estimator == "maximum" and margin.kind != "max_share":
        return f"the greatest of what was seen bounds nothing from above: {metric} can FAIL and never PASS"
    return None


def too_few(criterion: Criterion, figure: DeclaredFigure, declared: Declared) -> str | None:
    """Where fewer are evaluated than must be scored, or than its margin takes, nothing ever passes."""
    suite = declared.suite
    if declared.draws is not None and criterion.probe is ProbeName.CANARIES:
        suite += f" with --draws {declared.draws}"
    if figure.items is not None and figure.items < criterion.min_scored:
        return f"it requires {criterion.min_scored} scored, and {suite} has {figure.items} of {criterion.slice}"
    without_enough_clusters = _too_few_clusters(criterion, figure, suite)
    if without_enough_clusters is not None:
        return without_enough_clusters
    if criterion.margin.kind == "max_share" and figure.clusters is not None:
        needed = least_clusters(criterion.margin.value, criterion.confidence)
        if figure.clusters < needed:
            unseen = unseen_share(figure.clusters, criterion.confidence)
            return (
                f"its share of {criterion.margin.value:.2%} takes {needed:,} independent clusters, not one of them "
                f"beyond; {suite} has at most {figure.clusters:,} of {criterion.slice}, which show no share below "
                f"{unseen:.2%}"
            )
    shown = figure.estimator in ("paired_proportions", "paired_mean") and figure.bounded
    if figure.items is None or not shown or criterion.margin.against == "blessed":
        return None
    # the most favourable of all: what the reference gets wrong, no branch can lose, and no recovery is of
    score = 1.0 if criterion.margin.kind == "min_recovery" else ASSUMED_SCORE
    identical = as_expected([1] * figure.items, score)
    settings: dict[str, Any] = {
        "confidence": criterion.confidence,
        "direction": figure.direction,
        "estimator": figure.estimator,
    }
    if can_show(identical, criterion.margin, **settings):
        return None
    least = tightest_limit(identical, criterion.margin.kind, **settings)
    excluded = f"over {GREATEST_LIMIT:g}" if least is None else f"{least:.2g}"
    return (
        f"its margin of {criterion.margin.value:g} cannot be shown by the {figure.items} items of {criterion.slice}: "
        f"even of the reference itself they exclude no loss below {excluded}"
    )


def _too_few_clusters(criterion: Criterion, figure: DeclaredFigure, suite: str) -> str | None:
    metric = metric_of(figure.probe, figure.metric)
    needed = criterion.min_clusters or clusters_of_kind(figure.estimator, bounded=metric.bounds is not None)
    whose = "it" if criterion.min_clusters else "a figure of this kind"
    most = figure.items if figure.clusters is None else figure.clusters
    if most is not None and most < needed:
        return f"{whose} requires {needed} clusters, and {suite} has {most} of {criterion.slice}"
    if figure.effective_clusters is not None and figure.effective_clusters < needed:
        return (
            f"{whose} requires {needed} clusters, and those of {criterion.slice} in {suite} weigh as "
            f"{figure.effective_clusters} of equal size at most"
        )
    return None


def refuse_unmeasurable(policy: Policy, declared: Declared, *, default_family: bool = False) -> None:
    """Refuse to measure for a policy that nothing could pass, whatever the branch.

    `default_family` says that nobody named the family, which may be all that is wrong.

    Raises:
        UsageError: blocking criteria that will never PASS; names each of them and why.
    """
    never = list(_never(policy, declared))
    if never:
        each = "; ".join(f"{criterion.id}: {why}" for criterion, why in never)
        family = (
            f" for the family {declared.family} (the default; name another with --family)" if default_family else ""
        )
        raise UsageError(
            "policy-cannot-pass",
            f"No branch can pass the policy {policy.name} over the suite {declared.suite}{family}, so nothing is "
            f"measured. "
            f"{each}. Choose another suite or policy; q36eval policy check says all that is wrong.",
        )


def without_reference_weights(policy: Policy) -> str | None:
    """What a gate without the reference's weights leaves open, in one sentence; None where it can PASS.

    It is worth its while all the same: a FAIL is one, and what the weights are compared for can be judged elsewhere.
    """
    compared = {f.key for f in of_weights()} - {f.key for f in of_weights(against_reference=False)}
    named = [c.id for c in policy.criteria if c.tier == "blocking" and c.key in compared]
    if not named:
        return None
    return (
        f"The policy requires {', '.join(named)}, which {'needs' if len(named) == 1 else 'need'} the reference's "
        f"weights; with the pack alone the verdict can be FAIL or INCONCLUSIVE, never PASS."
    )


def _never(policy: Policy, declared: Declared) -> Iterator[tuple[Criterion, str]]:
    for criterion in policy.criteria:
        why = never_passes(criterion, declared) if criterion.tier == "blocking" else None
        if why is not None:
            yield criterion, why
