"""The figures of one slice: accuracy and recovery, flips and changed answers, perplexities.

`accuracy` is the mean over items, so that a task weighs by its size, as lm-eval aggregates MMLU. lm-eval aggregates
RULER by the mean of its tasks' means, which is the same where every task has the same number of items. A new figure is
a `Metric` and the function that yields its measurement; `evals.summaries` defines its slices, and declares it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from q36eval.evals.competence import Known, competence, failure_causes, with_families
from q36eval.evals.paired_clusters import (
    PlannedItem,
    details,
    flip_counts,
    is_scored,
    paired_clusters,
    scheduled,
    scores,
)
from q36eval.metrics import METRICS
from q36eval.paired_figures import recovery
from q36eval.records import (
    ItemOutcome,
    Measurement,
    ProbeName,
)

ACCURACY = METRICS[ProbeName.EVALS, "accuracy"]
RECOVERY = METRICS[ProbeName.EVALS, "recovery"]
ITEMS_LOST = METRICS[ProbeName.EVALS, "items_lost"]
ITEMS_GAINED = METRICS[ProbeName.EVALS, "items_gained"]
ITEMS_PLANNED = METRICS[ProbeName.EVALS, "items_planned"]
ANSWERS_CHANGED = METRICS[ProbeName.EVALS, "answers_changed"]
PERPLEXITY = METRICS[ProbeName.EVALS, "perplexity"]
WORD_PERPLEXITY = METRICS[ProbeName.EVALS, "word_perplexity"]

UNITS = {PERPLEXITY: "tokens", WORD_PERPLEXITY: "words"}
"""Metric -> its unit. Tokens are those of the tokenizer common to both sides; words are lm-eval's, split at blanks."""


@dataclass(frozen=True)
class Plan:
    """All items of a figure, and the reference's known answers to them."""

    items: Sequence[PlannedItem] = ()
    known: Known | None = None
    weights: Mapping[str, float] | None = None
    """The weight of a unit of each cluster, if items were drawn by margin and not all are evaluated."""

    @cached_property
    def right(self) -> Mapping[str, bool] | None:
        """For the items that the reference answered first, whether it got them right; None if unknown."""
        if self.known is None:
            return None
        return {key: answer.cause is None for key, answer in self.known.items() if answer.asked}

    def family_of(self, item: PlannedItem) -> str:
        """The family of a planned item; "" if unknown."""
        return "" if self.known is None else self.known[item.key].family

    def reference_fields(self, outcomes: Sequence[ItemOutcome]) -> dict[str, Any]:
        """The fields of a measurement for the reference's competence, and the causes of answers that are not right."""
        can = None if self.known is None or not self.items else competence(self.items, self.known)
        return {"competence": can, "causes": failure_causes(outcomes)}


NO_PLAN = Plan()
"""For use with outcomes alone."""


def accuracy(
    name: str, outcomes: Sequence[ItemOutcome], plan: Plan = NO_PLAN, *, in_blocks: bool = True
) -> Iterator[Measurement]:
    """Mean score over items, branch minus reference, and its recovery.

    Items of one group were laid out `in_blocks`, so that the figure may be looked at after each; those of several were
    not.
    """
    clusters = paired_clusters(outcomes, scores, bounds=(0.0, 1.0), weights=plan.weights)
    items = plan.items if in_blocks else ()
    laid_out = scheduled(clusters, outcomes, items, plan.family_of, plan.right)
    clusters = with_families(laid_out, outcomes, plan.known)
    lost, gained = flip_counts(outcomes)
    note = f"{lost} items lost and {gained} gained (full marks under one of the two only)"
    share, share_interval = recovery(clusters)
    reference_fields = plan.reference_fields(outcomes)
    yield ACCURACY.summarized(clusters, name, note=f"recovery {share:.2%}; {note}", **reference_fields)
    yield RECOVERY.measured(
        name,
        value=share,
        effect=share,
        effect_interval=share_interval,
        counts=clusters.counts(),
        note=f"of {ACCURACY.probe}.{ACCURACY.name}[{name}]",
    )


def hidden_changes(name: str, outcomes: Sequence[ItemOutcome], plan: Plan = NO_PLAN) -> Iterator[Measurement]:
    """Items lost and gained, and the answers that changed, whether right or wrong."""
    lost, gained = flip_counts(outcomes)
    for metric, count in ((ITEMS_LOST, lost), (ITEMS_GAINED, gained)):
        yield metric.counted(count, paired_clusters(outcomes, scores).counts(), name)
    if any(outcome.branch.text is not None for outcome in outcomes):
        clusters = paired_clusters(outcomes, _changed, bounds=(0.0, 1.0), weights=plan.weights)
        clusters = clusters.model_copy(update={"reference": None})
        yield ANSWERS_CHANGED.summarized(
            clusters, name, note="another choice or text than the reference's, right or wrong"
        )


def _changed(outcome: ItemOutcome) -> tuple[float, float] | None:
    """1 if the branch gave another choice or another text (ignoring surrounding blanks), paired with 0 for the
    reference."""
    if not is_scored(outcome):
        return None
    branch, reference = ((answer.text or "").strip() for answer in (outcome.branch, outcome.reference))
    return float(branch != reference), 0.0


def items_planned(name: str, planned: int, outcomes: Sequence[ItemOutcome]) -> Measurement:
    """The number of items in the suite; fewer are evaluated if a result was certain earlier."""
    counts = paired_clusters(outcomes, scores).counts()
    return ITEMS_PLANNED.counted(planned, counts, name)


def perplexities(name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Each exp(negative log-likelihood in nats / units), branch over reference as a ratio, a cluster per document."""
    errored = sum(not is_scored(outcome) for outcome in outcomes)
    note = f"{len(outcomes)} documents" + (f", {errored} of them without a figure" if errored else "")
    for metric, unit in UNITS.items():
        clusters = paired_clusters(outcomes, details("nll_nats"), units=partial(_units, unit))
        yield metric.summarized(clusters, name, note=note)


def _units(unit: str, outcome: ItemOutcome) -> int:
    """The document's number of units; 0 if neither answer has it, such as an errored item of an older version."""
    return int(outcome.branch.detail.get(unit) or outcome.reference.detail.get(unit) or 0)
