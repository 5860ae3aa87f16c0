"""Measurements of the KL probe that need every token: a quantile, the maximum, and groups across documents."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from q36eval.gate import NON_FINITE
from q36eval.kl.measurements import (
    DOCUMENT_TAIL,
    GROUP_FIGURES,
    KL,
    Figure,
    Grouping,
    document_figures,
    errored_tokens,
    left_out,
)
from q36eval.metrics import ALL, METRICS, DeclaredFigure
from q36eval.records import Clusters, Counts, ItemOutcome, Measurement, ProbeName
from q36eval.stats import quantile_clusters

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SHARE_BELOW = 0.99
"""The quantile: the share of all tokens that do not exceed it."""

P99 = Figure(METRICS[ProbeName.KL, "kl_p99"], KL.column)
MAXIMUM = Figure(METRICS[ProbeName.KL, "kl_max"], KL.column)

CENSUS = Figure(METRICS[ProbeName.KL, NON_FINITE], "finite")
"""For a group, so that overflowing states or caches show in their group; over everything documents are counted."""

FIRST_POSITIONS = 64


@dataclass(frozen=True)
class Tokens:
    """A run's tokens as NumPy columns [T], with their documents.

    `document` numbers each token's document in the order of `outcomes`, `grouping` those documents' clusters, `kind`
    its kind among `kinds`; figures are those of the tokens file, float32 widened to float64, so the sums can be
    reproduced from it.
    """

    outcomes: Sequence[ItemOutcome]
    document: Integers
    kinds: Sequence[str]
    kind: Integers
    position: Integers
    figures: dict[str, Floats]
    finite: NDArray[np.bool_]

    @cached_property
    def grouping(self) -> Grouping:
        """The clusters of the documents."""
        return Grouping.of(self.outcomes)

    @cached_property
    def cluster(self) -> Integers:
        """The number of each token's cluster [T]."""
        return self.grouping.number[self.document]

    def errored(self, documents: NDArray[np.bool_]) -> Integers:
        """The number of errored tokens of those documents [D], by cluster."""
        lost = [errored_tokens(outcome) * int(kept) for outcome, kept in zip(self.outcomes, documents, strict=True)]
        return np.array(self.grouping.counts(lost), dtype=np.int64)

    @classmethod
    def of(cls, table: "pa.Table", outcomes: Sequence[ItemOutcome]) -> "Tokens":
        """The columns of a tokens table; all its documents must be among the outcomes."""
        number = {outcome.item_key: index for index, outcome in enumerate(outcomes)}
        figures = {name: _numbers(table, name) for name in FIGURES_READ}
        names = ("forward_kl", "reverse_kl", "reference_logprob", "branch_logprob")
        figures |= {
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


FIGURES_READ = ("forward_kl", "reverse_kl", "reference_logprob", "branch_logprob", "top1_agrees")


def token_figures(slices: Iterable[str], groups: Iterable[str]) -> Iterator[tuple[Figure, str]]:
    """Every metric that needs single tokens, with its slice or group: used for measuring and for declaring.

    For a group this includes its means and its count of non-finite tokens; everything and the slices have these from
    the documents' sums.
    """
    for name in (ALL, *sorted(slices)):
        yield from ((figure, name) for figure in (P99, MAXIMUM))
    for name in groups:
        yield from ((figure, name) for figure in (*GROUP_FIGURES, CENSUS, P99))


@dataclass(frozen=True)
class Held:
    """The size of a slice or a group of tokens; None if only the data show it."""

    tokens: int | None = None
    documents: int | None = None
    clusters: int | None = None


def declared_figures(
    slices: Mapping[str, Held], groups: Mapping[str, Held], everything: Held
) -> Iterator[DeclaredFigure]:
    """The figures that the probe will measure over documents of these slices, with tokens of these `groups`."""
    yield METRICS[ProbeName.KL, NON_FINITE].declared(items=everything.tokens)
    held = {ALL: everything, **slices, **groups}
    for figure, name in (*document_figures(slices), *token_figures(slices, groups)):
        holds = held[name]
        items = holds.documents if figure is DOCUMENT_TAIL else holds.tokens
        yield figure.metric.declared(name, items=items, clusters=holds.clusters)


def token_measurements(tokens: Tokens) -> Iterator[Measurement]:
    """The quantile and the maximum, over everything and by slice, then each group's means."""
    if not tokens.document.size:
        return
    strata = np.array([outcome.stratum for outcome in tokens.outcomes], dtype=object)
    everything = np.ones(len(strata), dtype=bool)
    of_group = dict(groups(tokens))
    for figure, name in token_figures(set(strata.tolist()), of_group):
        if figure is CENSUS:
            measured: Measurement | None = _census_of_group(tokens, name, of_group[name])
        elif name in of_group and figure in GROUP_FIGURES:
            measured = _mean_of_group(tokens, figure, name, of_group[name])
        else:
            documents = everything if name == ALL or name in of_group else strata == name
            members = of_group[name] if name in of_group else documents[tokens.document]
            measured = _of_tokens(tokens, figure, name, documents, members)
        if measured is not None:
            yield measured


def groups(tokens: Tokens) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Slice names (`kind=json`, `position=64-127`) with the tokens [T] of each nonempty one."""
    for kind, number in sorted((kind, number) for number, kind in enumerate(tokens.kinds)):
        yield f"kind={kind}", tokens.kind == number
    for name, first, last in position_ranges(int(tokens.position.max())):
        yield name, (tokens.position >= first) & (tokens.position <= last)


def position_ranges(greatest: int) -> Iterator[tuple[str, int, int]]:
    """The name of each group of positions up to the largest, with its first and last."""
    first = 0
    while first <= greatest:
        last = FIRST_POSITIONS - 1 if first == 0 else 2 * first - 1
        yield f"position={first}-{last}", first, last
        first = last + 1


def _mean_of_group(tokens: Tokens, figure: Figure, name: str, members: NDArray[np.bool_]) -> Measurement | None:
    """A mean over a group of tokens. An errored token could belong to any group, so it counts in each."""
    everyone, members = int(members.sum()), members & tokens.finite
    if not members.any():
        return None
    cluster, names = tokens.cluster[members], tokens.grouping.names
    units = np.bincount(cluster, minlength=len(names))
    errored = tokens.errored(np.ones(len(tokens.outcomes), dtype=bool))
    kept = np.flatnonzero(units + errored)

    def sums(column: str) -> tuple[float, ...]:
        weights = tokens.figures[column][members]
        return tuple(np.bincount(cluster, weights=weights, minlength=len(units))[kept].tolist())

    clusters = Clusters(
        units=tuple(units[kept].tolist()),
        branch=sums(figure.column),
        reference=None if figure.reference_column is None else sums(figure.reference_column),
        errored=tuple(errored[kept].tolist()),
        bounds=figure.metric.bounds,
        names=tuple(names[row] for row in kept),
    )
    return figure.metric.summarized(clusters, name, note=left_out(everyone - cluster.size, everyone))


def _census_of_group(tokens: Tokens, name: str, members: NDArray[np.bool_]) -> Measurement:
    """The number of a group's tokens without a finite figure, and the number of tokens before the first of them."""
    broken = members & ~tokens.finite
    scored, errored = int(members.sum()), int(tokens.errored(np.ones(len(tokens.outcomes), dtype=bool)).sum())
    first = f"the first with {int(tokens.position[broken].min()):,} tokens to the left" if broken.any() else ""
    return CENSUS.metric.counted(
        int(broken.sum()), Counts(total=scored + errored, scored=scored, errored=errored), name, note=first
    )


def _of_tokens(
    tokens: Tokens, figure: Figure, name: str, documents: NDArray[np.bool_], members: NDArray[np.bool_]
) -> Measurement | None:
    """The quantile or the maximum of KL(p || q) over some tokens of some documents.

    Tokens without a finite value rank above all others.
    """
    values = tokens.figures["forward_kl"][members]
    if not values.size:
        return None
    lost, clusters = tokens.errored(documents), tokens.cluster[members]
    kept = (np.bincount(clusters, minlength=len(lost)) > 0) | (lost > 0)
    renumbered = (np.cumsum(kept) - 1)[clusters]
    errored = tuple(lost[kept].tolist())
    if figure is MAXIMUM:
        return figure.metric.summarized(_greatest(values, renumbered, errored), name)
    _, evidence = quantile_clusters(values, renumbered, errored, SHARE_BELOW, figure.metric.bounds)
    return figure.metric.summarized(evidence, name)


def _greatest(values: Floats, clusters: Integers, errored: tuple[int, ...]) -> Clusters:
    """Each cluster's largest divergence."""
    greatest = np.zeros(len(errored))
    np.maximum.at(greatest, clusters, np.where(np.isnan(values), np.inf, values))
    units = np.bincount(clusters, minlength=len(errored))
    return Clusters(
        units=tuple(units.tolist()), branch=tuple(greatest.tolist()), errored=errored, bounds=(0.0, math.inf)
    )


def _numbers(table: "pa.Table", name: str) -> Floats:
    column: Floats = table[name].combine_chunks().to_numpy(zero_copy_only=False).astype(np.float64)
    return column


def _names(table: "pa.Table", name: str) -> tuple[list[str], Integers]:
    """A column of names as its distinct names and each row's index into them."""
    column = table[name].combine_chunks()
    return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)
