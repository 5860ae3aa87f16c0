"""Whether the reference can do the task of a criterion: a check before any comparison, not a filter of items. Pure.

A comparison in which the reference fails says nothing. A family of items that the reference cannot do is therefore left
out as a whole, based on the reference's answers alone, which precede the branch's. Within a family every item stays.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from q36eval.gate.policy import Criterion, Informative
from q36eval.records import Clusters, Estimator, FamilyCompetence, Measurement, Reason, Record

PAIRED: tuple[Estimator, ...] = ("paired_mean", "paired_proportions")
"""Estimators that compare answers of two deployments; unbounded values are neither right nor wrong."""

CAUSES = {
    "cut_off": "cut off at their budget",
    "no_end": "never ended their reasoning",
    "loop": "went in circles",
    "unreadable": "unreadable",
    "errored": "errored",
    "text_around_right_json": "right JSON with text around it",
    "wrong": "wrong",
}
"""Descriptions of why an answer is not right; other causes are shown by their own names."""

NAMED = 3
"""The number of families that one sentence names; the report lists all of them."""


class Competence(Record):
    """What the reference can do of a criterion's task, by the items that it answered before the branch.

    `items` counts these, `informative` those that the reference answers right. Of all `planned` items, `remaining` lie
    in families that it can do. `left_out` are the other families, by name: none of their items was judged.
    """

    items: int
    informative: int
    remaining: int
    planned: int | None = None
    """None if all planned items were evaluated."""
    left_out: tuple[FamilyCompetence, ...] = ()


@dataclass(frozen=True)
class Remaining:
    """The part of a criterion's evidence to judge: the `kept` families; `refusal` gives the reason for none."""

    competence: Competence
    kept: frozenset[str]
    refusal: Reason | None = None

    @property
    def all_kept(self) -> bool:
        """Whether no family dropped out."""
        return not self.competence.left_out

    def of(self, clusters: Clusters) -> Clusters:
        """The clusters of the kept families.

        Raises:
            ValueError: the clusters' families are unknown, or the items have different weights, so that leaving some
                out would distort the rest.
        """
        if self.all_kept:
            return clusters
        if clusters.families is None:
            raise ValueError("the evidence does not say which items belong to the families that dropped out")
        if clusters.bounds is None or clusters.bounds[1] > 1.0:
            raise ValueError("its items do not weigh alike, so that no family can be left out of it")
        return clusters.of_families(self.kept)


def compares_answers(criterion: Criterion, measurement: Measurement) -> bool:
    """Whether the criterion compares right and wrong answers of both deployments."""
    clusters = measurement.clusters
    if criterion.informative is None or measurement.estimator not in PAIRED or clusters is None:
        return False
    return clusters.bounds is not None and all(map(math.isfinite, clusters.bounds))


def remaining(rule: Informative, measurement: Measurement) -> Remaining:
    """The part of a comparison that may be judged, given what the reference can do."""
    families = measurement.competence or ()
    kept = [family for family in families if is_able(family, rule)]
    asked, planned = sum(family.items for family in families), sum(family.weight for family in families)
    competence = Competence(
        items=asked,
        planned=None if planned == asked else planned,
        informative=sum(family.informative for family in families),
        remaining=sum(family.weight for family in kept),
        left_out=tuple(family for family in families if family not in kept),
    )
    names = frozenset(family.name for family in kept)
    return Remaining(competence, names, _refusal(rule, measurement, competence, names))


def is_able(family: FamilyCompetence, rule: Informative) -> bool:
    """Whether the reference answers enough of a family right for a comparison over it to be evidence."""
    return family.informative >= rule.min_items and share_above_chance(family) >= rule.min_share


def share_above_chance(family: FamilyCompetence) -> float:
    """The reference's share of right answers in a family, corrected for guessing; 0 without items."""
    if not family.items:
        return 0.0
    return (family.informative / family.items - family.chance) / (1.0 - family.chance)


def _refusal(
    rule: Informative, measurement: Measurement, competence: Competence, kept: Collection[str]
) -> Reason | None:
    if measurement.competence is None:
        return Reason(
            "competence-unknown",
            "the probe does not report what the reference can solve, so the comparison proves nothing",
        )
    names = [family.name for family in measurement.competence]
    known = set((measurement.clusters and measurement.clusters.families) or ())
    if len(set(names)) < len(names) or not known <= set(names):
        return Reason("competence-unknown", "the probe does not report for every item whether the reference solves it")
    planned = competence.planned or competence.items
    if not kept or competence.remaining < rule.min_weight * planned - 1e-9:
        share = f"{competence.remaining:,} of {planned:,} items are in families that the reference can do"
        required = f"the policy requires {100 * rule.min_weight:.4g} %"
        return Reason("reference-fails", f"{families_words(competence.left_out)}; {share}, and {required}")
    return None


def families_words(families: Sequence[FamilyCompetence]) -> str:
    """`the reference solves 3 of 200 in json-nested (190 cut off at their budget, 7 wrong)`, the largest first."""
    if not families:
        return "the reference was not evaluated on it"
    ordered = sorted(families, key=lambda family: (-family.items, family.name))
    clauses = [family_words(family) for family in ordered[:NAMED]]
    more = len(ordered) - NAMED
    clauses += [f"too few in {more} more famil{'y' if more == 1 else 'ies'}"] if more > 0 else []
    return f"the reference solves {', '.join(clauses)}"


def family_words(family: FamilyCompetence) -> str:
    """`3 of 200 in json-nested (190 cut off at their budget, 7 wrong)`."""
    beside = [f"{family.chance:.3g} of them by guessing"] if family.chance else []
    beside += [causes_words(family.causes)] if any(family.causes.values()) else []
    solved = f"{family.informative:,} of {family.items:,} in {family.name}"
    return f"{solved} ({'; '.join(beside)})" if beside else solved


def causes_words(causes: "dict[str, int]") -> str:
    """`190 cut off at their budget, 7 wrong`: the most frequent first; empty without causes."""
    ordered = sorted(causes.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(f"{count:,} {CAUSES.get(cause, cause.replace('_', ' '))}" for cause, count in ordered if count)
