"""The KL probe: exact KL(reference || branch) over the full vocabulary on held-out documents."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kl.corpus import CorpusDocument, windows
from kl.packs import asked_tensors, scored_tokens
from q36eval.engines.base import Engine, ScoreRequest
from q36eval.probes import Digest, ItemResults, WorkItem
from q36eval.records import (
    Answer,
    Clusters,
    Counts,
    Direction,
    Estimator,
    Interval,
    ItemOutcome,
    Measurement,
    ProbeName,
)
from q36eval.stats import summarize

if TYPE_CHECKING:
    import torch

    from kl.scoring import Scorer

CONTEXT = 4096
OVERLAP = 512


class KLProbe:
    """Implements `q36eval.probes.Probe`; one work item per document, one cluster per document.

    The reference's digest keeps final hidden states and not logits: 2 H bytes per token. Both deployments are judged
    through their own heads; the reference's head is kept once per capture.
    """

    name = ProbeName.KL

    def __init__(self, documents: Sequence[CorpusDocument], context: int = CONTEXT, overlap: int = OVERLAP) -> None:
        self._documents = {document.key: document for document in documents}
        self._context, self._overlap = context, overlap
        self._scorer: Scorer | None = None
        settings = {"documents": sorted(self._documents), "context": context, "overlap": overlap, "version": 1}
        self.suite_sha256 = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        """One item per document; documents of fewer than two tokens have nothing to score."""
        items = []
        for key, document in self._documents.items():
            ids = tuple(tokenizer.encode(document.text, add_special_tokens=False))
            requests = tuple(
                ScoreRequest(key=f"{key}/{begin}", token_ids=ids[begin:end], first=first - begin)
                for begin, end, first in windows(len(ids), self._context, self._overlap)
            )
            if requests:
                items.append(WorkItem(key=key, scores=requests))
        return items

    def shared_tensors(self, engine: Engine) -> "dict[str, torch.Tensor]":
        """The reference's head [V, H], from which its logits are rebuilt."""
        return {"head": engine.head_weight()}

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's final hidden states of all scored tokens, window after window, and what was asked."""
        return Digest(
            values={"tokens": scored_tokens(item)},
            tensors={"hidden_states": _hidden_states(item, results).cpu(), **asked_tensors(item)},
        )

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome per document, holding the sums that the measurements are made of."""
        document = self._documents[item.key]
        tokens = sum(len(request.token_ids) - request.first for request in item.scores)
        error = results.error or reference.error
        if error is not None:
            branch = Answer(score=None, error=error, detail={"tokens": tokens})
        else:
            sums = _document_sums(self._scorer_of(engine, reference), item, results, reference)
            mean = sums["forward_kl"] / sums["finite_tokens"] if sums["finite_tokens"] else None
            branch = Answer(score=mean, error=None, detail=sums)
        return [
            ItemOutcome(
                probe=self.name,
                group="corpus",
                item_key=item.key,
                cluster=document.id,
                stratum=document.slice,
                prompt=document.text,
                branch=branch,
                reference=Answer(score=None, detail={"tokens": tokens}),
            )
        ]

    def _scorer_of(self, engine: Engine, reference: Digest) -> "Scorer":
        """The one for this engine; a run has one reference head."""
        from kl.scoring import Scorer

        if self._scorer is None or self._scorer.engine is not engine:
            self._scorer = Scorer(engine, reference.tensors["head"])
        return self._scorer

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """KL, reverse KL, top-1 agreement and perplexity, over everything and by slice; non-finite tokens counted."""
        yield _non_finite(outcomes)
        slices = sorted({outcome.stratum for outcome in outcomes})
        for name in ["all", *slices]:
            chosen = [outcome for outcome in outcomes if name in ("all", outcome.stratum)]
            yield from _measurements(name, chosen)


def _hidden_states(item: WorkItem, results: ItemResults) -> "torch.Tensor":
    import torch

    parts = [results.scored[request.key].hidden_states for request in item.scores]
    return torch.cat([part for part in parts if part is not None])


def _document_sums(scorer: "Scorer", item: WorkItem, results: ItemResults, reference: Digest) -> dict[str, Any]:
    import torch

    labels = torch.tensor([token for request in item.scores for token in request.token_ids[request.first :]])
    figures = scorer.figures(reference.tensors["hidden_states"], _hidden_states(item, results), labels)
    # a token that the branch holds impossible has no finite divergence: it is counted, never averaged nor clipped
    finite = figures.finite
    forward = figures.forward_kl[finite]
    return {
        "tokens": len(labels),
        "finite_tokens": int(finite.sum()),
        "forward_kl": float(forward.sum()),
        "reverse_kl": float(figures.reverse_kl[finite].sum()),
        "reference_nll": -float(figures.reference_logprob[finite].sum()),
        "branch_nll": -float(figures.branch_logprob[finite].sum()),
        "top1_agrees": float(figures.top1_agrees[finite].sum()),
        "max_forward_kl": float(forward.max()) if len(forward) else 0.0,
    }


METRICS: tuple[tuple[str, str, str, Direction, Estimator, str | None, tuple[float, float] | None], ...] = (
    ("kl_divergence", "nats/token", "forward_kl", Direction.LOWER_IS_BETTER, "mean", None, None),
    ("reverse_kl_divergence", "nats/token", "reverse_kl", Direction.LOWER_IS_BETTER, "mean", None, None),
    ("top1_agreement", "fraction", "top1_agrees", Direction.HIGHER_IS_BETTER, "mean", None, (0.0, 1.0)),
    ("perplexity", "perplexity", "branch_nll", Direction.LOWER_IS_BETTER, "perplexity", "reference_nll", None),
)
"""metric, unit, per-document sum, direction, estimator, the reference's sum, bounds of one unit's value."""


def _measurements(slice_name: str, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
    details = [outcome.branch.detail for outcome in outcomes]
    scored = [detail.get("finite_tokens", 0) for detail in details]
    errored = [0 if outcome.branch.error is None else outcome.branch.detail["tokens"] for outcome in outcomes]
    counts = Counts(total=sum(scored) + sum(errored), scored=sum(scored), errored=sum(errored))
    if not counts.scored:
        return
    note = (
        f"{len(outcomes)} documents; worst token {max(float(d.get('max_forward_kl', 0.0)) for d in details):.3g} nats"
    )
    for metric, unit, column, direction, estimator, reference_column, bounds in METRICS:
        clusters = Clusters(
            units=tuple(scored),
            branch=_column(details, column),
            reference=None if reference_column is None else _column(details, reference_column),
            errored=tuple(errored),
            bounds=bounds,
        )
        value, reference_value, effect, interval = summarize(clusters, estimator)
        yield Measurement(
            probe=ProbeName.KL,
            metric=metric,
            slice=slice_name,
            unit=unit,
            direction=direction,
            estimator=estimator,
            value=value,
            reference_value=reference_value,
            effect=effect,
            effect_interval=interval,
            counts=counts,
            clusters=clusters,
            note=note if metric == "kl_divergence" else "",
        )


def _column(details: Iterable[dict[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(float(detail.get(name, 0.0)) for detail in details)


def _non_finite(outcomes: Sequence[ItemOutcome]) -> Measurement:
    seen = [outcome.branch.detail for outcome in outcomes if outcome.branch.error is None]
    missing = float(sum(detail["tokens"] - detail["finite_tokens"] for detail in seen))
    errored = sum(outcome.branch.detail["tokens"] for outcome in outcomes if outcome.branch.error is not None)
    scored = sum(detail["tokens"] for detail in seen)
    return Measurement(
        probe=ProbeName.KL,
        metric="non_finite_tokens",
        unit="tokens",
        direction=Direction.LOWER_IS_BETTER,
        estimator="census",
        value=missing,
        effect=missing,
        effect_interval=Interval(lower=missing, upper=missing, level=0.95, method="census"),
        counts=Counts(total=scored + errored, scored=scored, errored=errored),
    )
