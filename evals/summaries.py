"""From item outcomes to measurements: accuracy as paired means, perplexity from negative log-likelihoods."""

import math
from collections.abc import Iterator, Sequence

from evals.suite import TaskGroup
from q36eval.records import Clusters, Counts, Direction, ItemOutcome, Measurement, ProbeName
from q36eval.stats import summarize


def measurements(group: TaskGroup, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """The group as a whole, then each value of each of its slice fields; slices without a scored item give nothing."""
    measure = _accuracy if group.measure == "accuracy" else _perplexity
    for name, chosen in _slices(group, outcomes):
        if chosen:
            yield measure(name, chosen)


def _slices(group: TaskGroup, outcomes: Sequence[ItemOutcome]) -> Iterator[tuple[str, list[ItemOutcome]]]:
    yield group.slice, list(outcomes)
    prefix = "" if group.slice == "all" else f"{group.slice}/"
    for position, _ in enumerate(group.slice_fields):
        by_value: dict[str, list[ItemOutcome]] = {}
        for outcome in outcomes:
            by_value.setdefault(outcome.stratum.split("/")[position], []).append(outcome)
        for value, chosen in sorted(by_value.items(), key=lambda entry: _natural(entry[0])):
            yield prefix + value, chosen


def _natural(value: str) -> tuple[int, str]:
    return (int(value), "") if value.isdigit() else (0, value)


def _is_scored(outcome: ItemOutcome) -> bool:
    return outcome.branch.score is not None and outcome.reference.score is not None


def _accuracy(name: str, outcomes: Sequence[ItemOutcome]) -> Measurement:
    """Mean score over items, branch minus reference; one unit per item."""
    clusters = _clusters(outcomes, "score", "items", bounds=(0.0, 1.0))
    value, reference_value, effect, interval = summarize(clusters, "paired_mean")
    flips = [outcome.flip for outcome in outcomes]
    recovery = value / reference_value if reference_value else math.nan
    return Measurement(
        probe=ProbeName.EVALS,
        metric="accuracy",
        slice=name,
        unit="fraction",
        direction=Direction.HIGHER_IS_BETTER,
        estimator="paired_mean",
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=_counts(clusters),
        clusters=clusters,
        note=(
            f"recovery {recovery:.2%}; {flips.count('regression')} items lost and {flips.count('improvement')} gained"
        ),
    )


def _perplexity(name: str, outcomes: Sequence[ItemOutcome]) -> Measurement:
    """Perplexity per token of the deployment's own tokenizer; one unit per token, one cluster per document."""
    clusters = _clusters(outcomes, "nll_nats", "tokens", bounds=None)
    value, reference_value, effect, interval = summarize(clusters, "perplexity")
    return Measurement(
        probe=ProbeName.EVALS,
        metric="perplexity",
        slice=name,
        unit="perplexity",
        direction=Direction.LOWER_IS_BETTER,
        estimator="perplexity",
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=_counts(clusters),
        clusters=clusters,
        note=_perplexity_note(outcomes),
    )


def _perplexity_note(outcomes: Sequence[ItemOutcome]) -> str:
    scored = [outcome for outcome in outcomes if _is_scored(outcome)]
    words = sum(int(outcome.branch.detail["words"]) for outcome in scored)
    if not words:
        return f"{len(outcomes)} documents, none scored"
    branch = sum(float(outcome.branch.detail["nll_nats"]) for outcome in scored)
    reference = sum(float(outcome.reference.detail["nll_nats"]) for outcome in scored)
    branch_words, reference_words = _exp(branch / words), _exp(reference / words)
    return f"{len(outcomes)} documents; word perplexity {branch_words:.4g}, reference {reference_words:.4g}"


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _clusters(outcomes: Sequence[ItemOutcome], value: str, unit: str, bounds: tuple[float, float] | None) -> Clusters:
    """Sums per cluster of `value` ("score" or a key of the answers' detail) over "items" or "tokens"."""
    sums: dict[str, tuple[int, float, float, int]] = {}
    for outcome in outcomes:
        units, branch, reference, errored = sums.get(outcome.cluster, (0, 0.0, 0.0, 0))
        count = 1 if unit == "items" else int(outcome.branch.detail[unit])
        if _is_scored(outcome):
            values = (
                _value(outcome.branch.score, outcome.branch.detail, value),
                _value(outcome.reference.score, outcome.reference.detail, value),
            )
            sums[outcome.cluster] = (units + count, branch + values[0], reference + values[1], errored)
        else:
            sums[outcome.cluster] = (units, branch, reference, errored + count)
    columns = list(sums.values())
    return Clusters(
        units=tuple(row[0] for row in columns),
        branch=tuple(row[1] for row in columns),
        reference=tuple(row[2] for row in columns),
        errored=tuple(row[3] for row in columns),
        bounds=bounds,
    )


def _value(score: float | None, detail: dict[str, object], name: str) -> float:
    found = score if name == "score" else detail[name]
    if isinstance(found, str):  # JSON writes infinities and NaN as text
        found = float(found)
    if not isinstance(found, int | float):
        raise ValueError(f"a scored answer has no {name}")
    return float(found)


def _counts(clusters: Clusters) -> Counts:
    scored, errored = sum(clusters.units), sum(clusters.errored)
    return Counts(total=scored + errored, scored=scored, errored=errored)
