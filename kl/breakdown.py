"""Measurements of the KL probe that need every token: quantiles, the worst, and groups of tokens across documents."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kl.measurements import ALL, GROUP_METRICS, KL, Metric, document_names, errored_tokens, left_out, measurement
from q36eval.records import Clusters, ItemOutcome, Measurement
from q36eval.stats import quantile_clusters

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

QUANTILES = {"kl_median": 0.5, "kl_p90": 0.9, "kl_p95": 0.95, "kl_p99": 0.99, "kl_p99.9": 0.999}
SLICE_QUANTILES = ("kl_median", "kl_p99")
GROUP_QUANTILES = ("kl_p99",)
"""A slice or a group holds a part of the tokens; the quantiles further out would hang on a handful of them."""

MAXIMUM = "kl_max"

FIRST_POSITIONS = 64
ENTROPY_EDGES = (0.01, 0.1, 0.5, 1.0, 2.0)
"""Bounds in nats between buckets of the reference's confidence, from certain to undecided.

Confidence is the entropy of the reference's own distribution and not the probability of the label, which says how
predictable the corpus is and not how sure the reference was.
"""


@dataclass(frozen=True)
class Tokens:
    """A run's tokens as NumPy columns [T], and the documents they belong to.

    `document` numbers each token's document in the order of `outcomes`, `kind` its kind among `kinds`; figures are
    those of the tokens file, float32 widened to float64, so that anyone can make the same sums from it.
    """

    outcomes: Sequence[ItemOutcome]
    document: Integers
    kinds: Sequence[str]
    kind: Integers
    position: Integers
    figures: dict[str, Floats]
    finite: NDArray[np.bool_]

    @classmethod
    def of(cls, table: "pa.Table", outcomes: Sequence[ItemOutcome]) -> "Tokens":
        """The columns of a tokens table whose documents are all among the outcomes."""
        number = {outcome.item_key: index for index, outcome in enumerate(outcomes)}
        figures = {name: _numbers(table, name) for name in FIGURES_READ}
        names = ("forward_kl", "reverse_kl", "reference_logprob", "branch_logprob")
        p, q = np.exp(figures["reference_logprob"]), np.exp(figures["branch_logprob"])
        figures |= {
            "delta_p_squared": (q - p) ** 2,
            "reference_nll": -figures["reference_logprob"],
            "branch_nll": -figures["branch_logprob"],
        }
        keys, rows = _names(table, "item_key")
        kinds, kind = _names(table, "kind")
        return cls(
            outcomes=outcomes,
            document=np.array([number[key] for key in keys], dtype=np.int64)[rows],
            kinds=kinds,
            kind=kind,
            position=_numbers(table, "position").astype(np.int64),
            figures=figures,
            finite=np.all([np.isfinite(figures[name]) for name in names], axis=0),
        )


FIGURES_READ = ("forward_kl", "reverse_kl", "reference_entropy", "reference_logprob", "branch_logprob", "top1_agrees")


def token_measurements(tokens: Tokens) -> Iterator[Measurement]:
    """Quantiles and the maximum, over everything and by slice, then each group's means."""
    if not tokens.document.size:
        return
    strata = np.array([outcome.stratum for outcome in tokens.outcomes], dtype=object)
    everything = np.ones(len(strata), dtype=bool)
    yield from _quantiles(tokens, ALL, everything, everything[tokens.document], (*QUANTILES, MAXIMUM))
    for name in sorted(set(strata)):
        documents = strata == name
        yield from _quantiles(tokens, name, documents, documents[tokens.document], (*SLICE_QUANTILES, MAXIMUM))
    for name, members in groups(tokens):
        yield from _group(tokens, name, members)
        yield from _quantiles(tokens, name, everything, members, GROUP_QUANTILES)


def groups(tokens: Tokens) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Slice names (`kind=json`, `position=64-127`, `entropy=0.1-0.5`) with the tokens [T] in each that holds any."""
    for kind, number in sorted((kind, number) for number, kind in enumerate(tokens.kinds)):
        yield f"kind={kind}", tokens.kind == number
    first = 0
    while first <= tokens.position.max():
        last = FIRST_POSITIONS - 1 if first == 0 else 2 * first - 1
        yield f"position={first}-{last}", (tokens.position >= first) & (tokens.position <= last)
        first = last + 1
    entropy = tokens.figures["reference_entropy"]
    edges = (0.0, *ENTROPY_EDGES, math.inf)
    for low, high in itertools.pairwise(edges):
        label = f"entropy={low:g}-{high:g}" if math.isfinite(high) else f"entropy={low:g}+"
        yield label, (entropy >= low) & (entropy < high)


def _group(tokens: Tokens, name: str, members: NDArray[np.bool_]) -> Iterator[Measurement]:
    """Means over a group of tokens. What errored could have lain in any group, so it counts in each."""
    everyone, members = int(members.sum()), members & tokens.finite
    document = tokens.document[members]
    if not document.size:
        return
    units = np.bincount(document, minlength=len(tokens.outcomes))
    errored = np.array([errored_tokens(outcome) for outcome in tokens.outcomes])
    kept = np.flatnonzero(units + errored)
    names = document_names(tokens.outcomes)

    def sums(column: str) -> tuple[float, ...]:
        weights = tokens.figures[column][members]
        return tuple(np.bincount(document, weights=weights, minlength=len(units))[kept].tolist())

    for metric in GROUP_METRICS:
        clusters = Clusters(
            units=tuple(units[kept].tolist()),
            branch=sums(metric.column),
            reference=None if metric.reference_column is None else sums(metric.reference_column),
            errored=tuple(errored[kept].tolist()),
            bounds=metric.bounds,
            names=tuple(names[row] for row in kept),
        )
        yield measurement(metric, name, clusters, left_out(everyone - document.size, everyone))


def _quantiles(
    tokens: Tokens, name: str, documents: NDArray[np.bool_], members: NDArray[np.bool_], wanted: Sequence[str]
) -> Iterator[Measurement]:
    """Quantiles of KL(p || q) over some tokens of some documents; those without a finite one lie above all others."""
    values = tokens.figures["forward_kl"][members]
    if not values.size:
        return
    lost = np.array([errored_tokens(outcome) for outcome in tokens.outcomes])
    holding = np.bincount(tokens.document[members], minlength=len(lost)) > 0
    kept = documents & (holding | (lost > 0))
    renumbered = (np.cumsum(kept) - 1)[tokens.document[members]]
    errored = tuple(lost[kept].tolist())
    for metric in wanted:
        if metric in QUANTILES:
            _, clusters = quantile_clusters(values, renumbered, errored, QUANTILES[metric], (0.0, math.inf))
            yield measurement(Metric(metric, KL.unit, KL.column, estimator="quantile"), name, clusters)
        else:
            yield measurement(
                Metric(metric, KL.unit, KL.column, estimator="maximum"), name, _greatest(values, renumbered, errored)
            )


def _greatest(values: Floats, document: Integers, errored: tuple[int, ...]) -> Clusters:
    """Each document's greatest divergence."""
    greatest = np.zeros(len(errored))
    np.maximum.at(greatest, document, np.where(np.isnan(values), np.inf, values))
    units = np.bincount(document, minlength=len(errored))
    return Clusters(
        units=tuple(units.tolist()), branch=tuple(greatest.tolist()), errored=errored, bounds=(0.0, math.inf)
    )


def _numbers(table: "pa.Table", name: str) -> Floats:
    column: Floats = table[name].combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
    return column


def _names(table: "pa.Table", name: str) -> tuple[list[str], Integers]:
    """A column of names as its distinct names and each row's number among them."""
    column = table[name].combine_chunks()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)
