"""Perplexity of whole documents on identical text: per token, per word and per byte."""

from collections.abc import Iterator, Sequence
from functools import partial

from evals.paired_clusters import counts_of, details, is_scored, paired_clusters
from q36eval.records import Direction, ItemOutcome, Measurement, ProbeName
from q36eval.stats import summarize

UNITS = {"perplexity": "tokens", "word_perplexity": "words", "byte_perplexity": "bytes"}
"""Metric -> what it counts. Tokens are those of the one tokenizer of both; words are lm-eval's, split at blanks."""


def perplexities(name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """Each exp(negative log-likelihood in nats / units), branch over reference as a ratio, a cluster per document."""
    for metric, unit in UNITS.items():
        clusters = paired_clusters(outcomes, details("nll_nats"), units=partial(_units, unit))
        value, reference_value, effect, interval = summarize(clusters, "perplexity")
        yield Measurement(
            probe=ProbeName.EVALS,
            metric=metric,
            slice=name,
            unit="perplexity" if unit == "tokens" else f"perplexity per {unit.removesuffix('s')}",
            direction=Direction.LOWER_IS_BETTER,
            estimator="perplexity",
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
