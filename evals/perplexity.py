"""Perplexity of whole documents on identical text: per token, per word and per byte."""

from collections.abc import Iterator, Sequence
from functools import partial

from q36eval.evals.accuracy import Figure
from q36eval.evals.paired_clusters import counts_of, details, is_scored, paired_clusters
from q36eval.records import Direction, ItemOutcome, Measurement, ProbeName
from q36eval.stats import summarize

PERPLEXITY, WORD_PERPLEXITY, BYTE_PERPLEXITY = (
    Figure(metric, unit, "perplexity", Direction.LOWER_IS_BETTER, bounded=False)
    for metric, unit in (
        ("perplexity", "perplexity"),
        ("word_perplexity", "perplexity per word"),
        ("byte_perplexity", "perplexity per byte"),
    )
)

UNITS = {PERPLEXITY: "tokens", WORD_PERPLEXITY: "words", BYTE_PERPLEXITY: "bytes"}
"""Figure -> what it counts. Tokens are those of the one tokenizer of both; words are lm-eval's, split at blanks."""


def perplexities(name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Each exp(negative log-likelihood in nats / units), branch over reference as a ratio, a cluster per document."""
    for figure, unit in UNITS.items():
        clusters = paired_clusters(outcomes, details("nll_nats"), units=partial(_units, unit))
        value, reference_value, effect, interval = summarize(clusters, figure.estimator)
        yield Measurement(
            probe=ProbeName.EVALS,
            metric=figure.metric,
            slice=name,
            unit=figure.unit,
            direction=figure.direction,
            estimator=figure.estimator,
            value=value,
            reference_value=reference_value,
            effect=effect,
            effect_interval=interval,
            counts=counts_of(clusters),
            clusters=clusters,
            note=_note(outcomes),
        )


def _units(unit: str, outcome: ItemOutcome) -> int:
    """How many the document has; 0 where neither answer says, as of an item that errored in an older version."""
    return int(outcome.branch.detail.get(unit) or outcome.reference.detail.get(unit) or 0)


def _note(outcomes: Sequence[ItemOutcome]) -> str:
    errored = sum(not is_scored(outcome) for outcome in outcomes)
    return f"{len(outcomes)} documents" + (f", {errored} of them without a figure" if errored else "")
