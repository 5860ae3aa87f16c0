"""The KL probe against a top-k pack: a lower bound on the divergence, and what it misses where that is known."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from q36eval.engines.base import Engine
from q36eval.files import json_sha256
from q36eval.gate import NON_FINITE
from q36eval.kl.measurements import ALL, Grouping, joined, left_out, non_finite_tokens
from q36eval.kl.packs import asked_tensors, scored_states, scored_tokens
from q36eval.probes import Digest, ItemResults, Probe, WorkItem
from q36eval.records import Answer, Clusters, Counts, DeclaredFigure, Direction, ItemOutcome, Measurement, ProbeName
from q36eval.stats import summarize

if TYPE_CHECKING:
    import torch

    from q36eval.kl.topk import TopK

ELEMENTS_PER_STEP = 2**24
"""About how many logits are in work at once."""

BOUND = "kl_divergence_lower_bound"
GAP = "kl_divergence_bound_gap"


class TopKProbe(Probe):
    """A lower bound of the divergence on the documents of `base`, a `kl.probe.KLProbe`.

    It works from `top_k` log-probabilities a position. `full` are hidden-state digests of the same documents (with the
    head), where there are any: with them the exact divergence is computed too, and the gap reported.
    """

    name = ProbeName.KL
    kind = "top-k"

    top_k: int

    def __init__(self, base: Probe, top_k: int, full: Mapping[str, Digest] | None = None) -> None:
        self.base, self._full = base, full
        self.top_k = top_k
        settings = {"base": base.suite_sha256, "top_k": top_k, "version": 1}
        self.suite_fields = {**base.suite_fields, "top_k": str(top_k)}
        self.suite_sha256 = json_sha256(settings)

    def declared(self) -> tuple[DeclaredFigure, ...]:
        """The bound over all tokens, its gap where the exact divergence is known too, and what was not finite."""
        lower = Direction.LOWER_IS_BETTER
        found = [DeclaredFigure(self.name, NON_FINITE, ALL, "census", lower, "tokens")]
        names = [BOUND] if self._full is None else [BOUND, GAP]
        found += [DeclaredFigure(self.name, name, ALL, "mean", lower, "nats/token", bounded=False) for name in names]
        return tuple(found)

    def plan(self, tokenizer: Any) -> Sequence[WorkItem]:
        """The other probe's items."""
        return self.base.plan(tokenizer)

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's likeliest tokens of every scored position, and the mass of all others; never of NaN."""
        import torch

        from q36eval.kl.topk import TopK

        parts, vocabulary = [], 0
        for logits in _logits(engine, item, results):
            vocabulary = logits.shape[-1]
            try:
                parts.append(TopK.of_logits(logits, self.top_k))
            except ValueError:
                return Digest(error="the reference's logits are not numbers")
        tensors = {
            "ids": torch.cat([part.ids for part in parts]),
            "logprobs": torch.cat([part.logprobs for part in parts]).float(),
            "tail_mass": torch.cat([part.tail_mass for part in parts]).float(),
            **asked_tensors(item),
        }
        return Digest(values={"tokens": scored_tokens(item), "vocabulary": vocabulary}, tensors=tensors)

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome per document with the sum of the bounds and, where the exact divergence is known, its sum."""
        tokens = scored_tokens(item)
        error = results.error or reference.error
        detail = {"tokens": tokens} if error is not None else self._sums(engine, item, results, reference)
        score = detail["lower_bound"] / detail["finite_tokens"] if detail.get("finite_tokens") else None
        return [
            ItemOutcome(
                probe=self.name,
                group="corpus, top-k",
                item_key=item.key,
                cluster=self._cluster_of(item.key),
                branch=Answer(score=score, error=error, detail=detail),
                reference=Answer(score=None, detail={"tokens": tokens}),
            )
        ]

    def _cluster_of(self, item_key: str) -> str:
        """As the other probe has it; the item itself where it has none."""
        known = getattr(self.base, "cluster_of", None)
        return item_key if known is None else str(known(item_key))

    def _sums(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> dict[str, Any]:
        bound = self._bounds(engine, item, results, reference)
        finite = bound.isfinite()
        sums = {
            "tokens": len(bound),
            "finite_tokens": int(finite.sum()),
            "lower_bound": float(bound[finite].sum()),
        }
        if self._full is not None and item.key in self._full:
            exact = _exact(engine, item, results, self._full[item.key])
            both = finite & exact.isfinite()
            # below 0 is only the rounding of the exact figure, whose sums on a GPU are float32
            gap = (exact - bound)[both].clamp(min=0.0)
            sums |= {"exact_tokens": int(both.sum()), "gap": float(gap.sum())}
        return sums

    def _bounds(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> "torch.Tensor":
        import torch

        from q36eval.kl.topk import lower_bound

        parts, begin = [], 0
        for logits in _logits(engine, item, results):
            rows = slice(begin, begin + len(logits))
            parts.append(lower_bound(_stored(reference, rows), logits))
            begin += len(logits)
        return torch.cat(parts)

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """The bound and, where the exact divergence is known, its gap; a bound is never reported as a divergence.

        Tokens without a finite bound are counted as those without a finite divergence are, and enter no mean.
        """
        census = non_finite_tokens(outcomes)
        yield census
        missing = left_out(int(census.value), census.counts.scored)
        found = _measurement(outcomes, BOUND, "lower_bound", "finite_tokens")
        if found is not None:
            note = joined(f"from the {self.top_k} likeliest tokens; KL is at least this", missing)
            yield found.model_copy(update={"note": note})
        gap = _measurement(outcomes, GAP, "gap", "exact_tokens")
        if gap is not None:
            note = joined(f"exact KL minus its lower bound from {self.top_k} tokens, at least 0 per token", missing)
            yield gap.model_copy(update={"note": note})


def _logits(engine: Engine, item: WorkItem, results: ItemResults) -> "Iterator[torch.Tensor]":
    """The logits [t, V] of all scored positions in order, a piece at a time."""
    step = None
    for request in item.scores:
        states = results.scored[request.key].hidden_states
        if states is None:
            raise ValueError(f"no hidden states of {request.key!r}")
        begin = 0
        while begin < len(states):
            logits = engine.logits(states[begin : begin + (step or 1)])
            yield logits
            begin += len(logits)
            step = max(1, ELEMENTS_PER_STEP // logits.shape[-1])


def _stored(reference: Digest, rows: slice) -> "TopK":
    from q36eval.kl.topk import TopK

    return TopK(*(reference.tensors[name][rows] for name in ("ids", "logprobs", "tail_mass")))


def _exact(engine: Engine, item: WorkItem, results: ItemResults, full: Digest) -> "torch.Tensor":
    import torch

    from q36eval.kl.scoring import Scorer

    labels = torch.tensor([token for request in item.scores for token in request.token_ids[request.first :]])
    scorer = Scorer(engine, full.tensors["head"])
    return scorer.figures(full.tensors["hidden_states"], scored_states(item, results), labels).forward_kl


def _measurement(outcomes: Sequence[ItemOutcome], metric: str, column: str, units: str) -> Measurement | None:
    """The mean of a per-token figure, clustered by document; None where nothing was scored."""
    details = [outcome.branch.detail for outcome in outcomes]
    scored = [int(detail.get(units, 0)) for detail in details]
    errored = [int(o.branch.detail["tokens"]) if o.branch.error is not None else 0 for o in outcomes]
    if not sum(scored):
        return None
    grouping = Grouping.of(outcomes)
    clusters = Clusters(
        units=grouping.counts(scored),
        branch=grouping.sums(float(detail.get(column, 0.0)) for detail in details),
        errored=grouping.counts(errored),
        names=grouping.names,
    )
    value, _, effect, interval = summarize(clusters, "mean")
    return Measurement(
        probe=ProbeName.KL,
        metric=metric,
        unit="nats/token",
        direction=Direction.LOWER_IS_BETTER,
        estimator="mean",
        value=value,
        effect=effect,
        effect_interval=interval,
        counts=Counts(total=sum(scored) + sum(errored), scored=sum(scored), errored=sum(errored)),
        clusters=clusters,
    )
