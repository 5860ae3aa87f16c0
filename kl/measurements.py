"""Measurements of the KL probe from sums over documents: means, perplexities, and non-finite tokens."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q36eval.gate import NON_FINITE
from q36eval.metrics import ALL, METRICS, Metric
from q36eval.records import Clusters, Counts, FamilyCompetence, ItemOutcome, Measurement, ProbeName

NAME_CHARACTERS = 12

DRAFT_ACCEPTANCE = "draft_acceptance"
DRAFT_GUESSES = ("guess=1", "guess=2", "guess=3")
"""Tokens ahead that a draft head guesses; published cards serve with 2 to 4. Not declared, because only the checkpoint
shows whether it has a draft head."""


@dataclass(frozen=True)
class Figure:
    """The computation of one metric: its per-document sum, and the reference's if paired."""

    metric: Metric
    column: str
    reference_column: str | None = None


def _figure(name: str, column: str, reference_column: str | None = None) -> Figure:
    return Figure(METRICS[ProbeName.KL, name], column, reference_column)


KL = _figure("kl_divergence", "forward_kl")
TOP1 = _figure("top1_agreement", "top1_agrees")
PERPLEXITY = _figure("perplexity", "branch_nll", "reference_nll")

FIGURES = (KL, _figure("reverse_kl_divergence", "reverse_kl"), TOP1, PERPLEXITY)
"""For everything and for each slice."""

GROUP_FIGURES = (KL, TOP1, PERPLEXITY)
"""By kind of token and by position."""

DOCUMENT_TAIL = _figure("kl_document_max", KL.column)
"""Each cluster's worst document by mean KL, for the share of clusters beyond a threshold."""


SHORTEST = 32
"""Tokens: a shorter document counts as this long, because the mean of a two-word answer is one token's value."""

SLICE_FIGURES = (*FIGURES, DOCUMENT_TAIL)
"""Figures from documents' sums, for everything and for each slice."""


def document_figures(slices: Iterable[str]) -> Iterator[tuple[Figure, str]]:
    """Every metric made from documents' sums, with its slice: used for measuring and for declaring.

    The count of non-finite tokens is separate (`non_finite_tokens`).
    """
    yield from ((figure, ALL) for figure in SLICE_FIGURES)
    yield from ((figure, name) for name in sorted(slices) for figure in SLICE_FIGURES)


def document_measurements(outcomes: Sequence[ItemOutcome], without: str = "") -> Iterator[Measurement]:
    """All measurements from the documents' sums, overall and by slice, with the count of non-finite tokens.

    `without` describes documents missing from `outcomes`; the KL over all carries it as a note.
    """
    yield non_finite_tokens(outcomes)
    by_slice: dict[str, list[ItemOutcome]] = {}
    for outcome in outcomes:
        by_slice.setdefault(outcome.stratum, []).append(outcome)
    for figure, name in document_figures(by_slice):
        chosen = outcomes if name == ALL else by_slice[name]
        if any(outcome.branch.detail.get("finite_tokens") for outcome in chosen):
            measured = _of_slice(figure, name, chosen)
            if figure is KL and name == ALL:
                measured = measured.model_copy(update={"note": joined(measured.note or "", without)})
            yield measured
    yield from acceptance_measurements(outcomes)


def acceptance_measurements(outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    """The acceptance rate of each side's own draft head, guess by guess; nothing if one side has none.

    The reference's rate is reported, too: if few of its guesses are accepted, keeping all of them says nothing.
    """
    guesses = sorted({guess for outcome in outcomes for guess in outcome.branch.detail.get("accepted", {})})
    metric = METRICS[ProbeName.KL, DRAFT_ACCEPTANCE]
    for guess in guesses:
        rows = [outcome.branch.detail.get("accepted", {}).get(guess, (0.0, 0, 0.0)) for outcome in outcomes]
        grouping = Grouping.of(outcomes)
        clusters = Clusters(
            units=grouping.counts(int(count) for _, count, _ in rows),
            branch=grouping.sums(branch for branch, _, _ in rows),
            reference=grouping.sums(reference for _, _, reference in rows),
            errored=grouping.counts(map(errored_tokens, outcomes)),
            bounds=metric.bounds,
            names=grouping.names,
        )
        if sum(clusters.units):
            name = f"guess={guess}"
            figure = metric.summarized(clusters, name, note=evidence_words(len(outcomes), len(grouping.names)))
            accepted = int(sum(clusters.reference or ()))
            causes = {"wrong": figure.counts.scored - accepted, "errored": figure.counts.errored}
            able = FamilyCompetence(name=name, items=figure.counts.total, informative=accepted, causes=causes)
            yield figure.model_copy(update={"competence": (able,)})


def left_out(missing: int, scored: int) -> str:
    """A note on the tokens missing from a mean: `missing` of `scored` have no finite figure; empty if none."""
    return f"without {missing:,} of {scored:,} scored tokens, whose figures are not finite" if missing else ""


def joined(*notes: str) -> str:
    """The nonempty notes, joined."""
    return "; ".join(note for note in notes if note)


def _finite_of(details: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """The number of scored tokens without a finite figure, and the number of scored tokens."""
    seen = [(int(detail["tokens"]), int(detail["finite_tokens"])) for detail in details if "finite_tokens" in detail]
    return sum(tokens - finite for tokens, finite in seen), sum(tokens for tokens, _ in seen)


@dataclass(frozen=True)
class Grouping:
    """The cluster of each document: `number` [D] is its index into `names`.

    Documents of one source are one cluster. Clusters have the same names in every run that measures the same documents,
    so that two runs can be paired: a single document by the start of its key, several by that of the hash of their
    keys.
    """

    number: NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def of(cls, outcomes: Sequence[ItemOutcome]) -> "Grouping":
        """By the outcomes' `cluster`."""
        members: dict[str, list[str]] = {}
        for outcome in outcomes:
            members.setdefault(outcome.cluster, []).append(outcome.item_key)
        order = {cluster: number for number, cluster in enumerate(members)}
        numbers = [order[outcome.cluster] for outcome in outcomes]
        return cls(np.array(numbers, dtype=np.int64), tuple(map(called, members.values())))

    def sums(self, values: Iterable[float]) -> tuple[float, ...]:
        """Sums over the documents of each cluster."""
        totals = np.bincount(self.number, weights=np.fromiter(values, np.float64), minlength=len(self.names))
        return tuple(totals.tolist())

    def counts(self, values: Iterable[int]) -> tuple[int, ...]:
        """The same for integers."""
        return tuple(map(int, self.sums(values)))

    def greatest(self, values: Sequence[float]) -> tuple[float, ...]:
        """The largest value of each cluster's documents, but at least 0."""
        greatest = np.zeros(len(self.names))
        np.maximum.at(greatest, self.number, np.asarray(values, dtype=np.float64))
        return tuple(greatest.tolist())


def called(keys: Sequence[str]) -> str:
    """The name of a cluster of documents with these keys."""
    only = keys[0] if len(keys) == 1 else hashlib.sha256("\0".join(sorted(keys)).encode()).hexdigest()
    return only[:NAME_CHARACTERS]


def errored_tokens(outcome: ItemOutcome) -> int:
    """The number of a document's tokens without a figure because the engine failed."""
    return 0 if outcome.branch.error is None else int(outcome.branch.detail["tokens"])


def _of_slice(figure: Figure, slice_name: str, outcomes: Sequence[ItemOutcome]) -> Measurement:
    if figure is DOCUMENT_TAIL:
        return _document_tail(slice_name, outcomes)
    details = [outcome.branch.detail for outcome in outcomes]
    grouping = Grouping.of(outcomes)
    reference = figure.reference_column
    clusters = Clusters(
        units=grouping.counts(int(detail.get("finite_tokens", 0)) for detail in details),
        branch=grouping.sums(_column(details, figure.column)),
        reference=None if reference is None else grouping.sums(_column(details, reference)),
        errored=grouping.counts(map(errored_tokens, outcomes)),
        bounds=figure.metric.bounds,
        names=grouping.names,
    )
    note = ""
    if figure is KL:
        worst = max(float(detail.get("max_forward_kl", 0.0)) for detail in details)
        note = joined(evidence_words(len(outcomes), len(grouping.names)), f"worst token {worst:.3g} nats")
    return figure.metric.summarized(clusters, slice_name, note=joined(note, left_out(*_finite_of(details))))


def _document_tail(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Measurement:
    """Each cluster's worst document; one without any finite token counts as errored."""
    finite = [int(outcome.branch.detail.get("finite_tokens", 0)) for outcome in outcomes]
    sums = _column([outcome.branch.detail for outcome in outcomes], KL.column)
    # only rounding can make a divergence negative
    means = [max(0.0, total / max(tokens, SHORTEST)) for total, tokens in zip(sums, finite, strict=True)]
    grouping = Grouping.of(outcomes)
    clusters = Clusters(
        units=grouping.counts(int(tokens > 0) for tokens in finite),
        branch=grouping.greatest(means),
        errored=grouping.counts(int(tokens == 0) for tokens in finite),
        bounds=DOCUMENT_TAIL.metric.bounds,
        names=grouping.names,
    )
    note = evidence_words(len(outcomes), len(grouping.names))
    return DOCUMENT_TAIL.metric.summarized(clusters, slice_name, note=note)


def evidence_words(documents: int, clusters: int) -> str:
    """The number of documents, and the number of clusters if different."""
    return f"{documents} documents{', taken as independent' if clusters == documents else f' in {clusters} clusters'}"


def _column(details: Iterable[dict[str, Any]], name: str) -> tuple[float, ...]:
    """One sum for every document; an errored one has no sums, and none of its tokens is scored."""
    return tuple(float(detail[name]) if "finite_tokens" in detail else 0.0 for detail in details)


def non_finite_tokens(outcomes: Sequence[ItemOutcome]) -> Measurement:
    """The count of scored tokens without a finite figure, independent of their other figures."""
    missing, scored = _finite_of(outcome.branch.detail for outcome in outcomes if outcome.branch.error is None)
    errored = sum(map(errored_tokens, outcomes))
    return METRICS[ProbeName.KL, NON_FINITE].counted(
        missing, Counts(total=scored + errored, scored=scored, errored=errored)
    )
