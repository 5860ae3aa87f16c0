"""KL from the K likeliest tokens and the mass of the rest: a lower bound on the exact divergence.

For engines that give log-probabilities of a few tokens and no hidden states. All tokens outside the reference's K are
lumped into one. By the log-sum inequality (Cover and Thomas 2006, theorem 2.7.1) lumping outcomes together never raises
a divergence: sum_i p_i log(p_i / q_i) >= (sum_i p_i) log(sum_i p_i / sum_i q_i). So KL over the lumped outcomes is at
most KL over the vocabulary, grows with K, and equals it at K = V.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from q36eval.engines.base import Engine
from q36eval.files import json_sha256
from q36eval.gate import NON_FINITE
from q36eval.kl.measurements import (
    LOWER_BOUND,
    Grouping,
    errored_tokens,
    joined,
    left_out,
    measurement,
    non_finite_tokens,
)
from q36eval.kl.planning import request_tensors, scored_states, scored_tokens
from q36eval.kl.probe import KLProbe
from q36eval.metrics import ALL, METRICS, DeclaredFigure
from q36eval.probes import Digest, ItemResults, Probe, WorkItem
from q36eval.records import Answer, Clusters, ItemOutcome, Measurement, ProbeName


@dataclass(frozen=True)
class TopK:
    """Of each of T positions the K likeliest tokens: `ids` int32 [T, K], their `logprobs` [T, K] in nats, likeliest
    first, and `tail_mass` [T], the probability of all others together.
    """

    ids: Tensor
    logprobs: Tensor
    tail_mass: Tensor

    @classmethod
    def of_logits(cls, logits: Tensor, k: int) -> "TopK":
        """The `k` likeliest (all of them where V <= k) of logits [T, V], in float64; of equal ones the lower id first.

        Raises:
            ValueError: a row holds NaN or +inf.
        """
        k = min(k, logits.shape[-1])
        log_p = torch.log_softmax(logits.double(), dim=-1)
        if log_p.isnan().any():
            raise ValueError("the logits are not numbers")
        ids = _likeliest(log_p, k)
        rest = log_p.scatter(-1, ids, -torch.inf)
        return cls(ids.int(), log_p.gather(-1, ids), torch.logsumexp(rest, -1).exp())


def _likeliest(log_p: Tensor, k: int) -> Tensor:
    """Ids [T, k] of the largest values, of equal ones the lower id first: those of a smaller k are among them."""
    threshold = log_p.topk(k, dim=-1).values[:, -1:]
    above, level = log_p > threshold, log_p == threshold
    wanted = above | (level & (level.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    ids = wanted.nonzero()[:, 1].reshape(len(log_p), k)
    order = log_p.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order)


def lower_bound(reference: TopK, branch_logits: Tensor) -> Tensor:
    """A lower bound on KL(reference || branch) in nats per position, [T] float64 on the CPU.

    `branch_logits` [T, V] are reduced on the reference's ids and their tail. +inf where the branch holds a token or the
    whole tail impossible that the reference does not; NaN where its logits are not numbers.

    What is stored is brought back to a distribution by one common factor. What its rounding can have added is taken
    off, so that the bound holds whatever the number format, and from float32 the reference itself gets exactly 0.
    """
    device = branch_logits.device
    log_q = torch.log_softmax(branch_logits.double(), dim=-1)
    ids = reference.ids.long().to(device)
    tail_q = torch.logsumexp(log_q.scatter(-1, ids, -torch.inf), -1, keepdim=True)
    lumped_q = torch.cat([log_q.gather(-1, ids), tail_q], dim=-1)
    tail_p = reference.tail_mass.double().log().unsqueeze(-1)
    lumped_p = torch.cat([reference.logprobs.double(), tail_p], dim=-1).to(device)
    lumped_p = lumped_p - torch.logsumexp(lumped_p, -1, keepdim=True)
    terms = (lumped_p - lumped_q) * lumped_p.exp()
    possible = lumped_p != -torch.inf
    bound = terms.masked_fill(~possible, 0.0).sum(-1)
    bound = (bound - _rounding(lumped_p, lumped_q, reference.logprobs.dtype)).clamp(min=0.0)
    return bound.masked_fill(log_q.isnan().any(-1), torch.nan).cpu()


def lower_bound_of_likeliest(reference: TopK, ids: Tensor, logprobs: Tensor) -> Tensor:
    """As `lower_bound`, of a branch whose likeliest tokens alone are known: `ids` int64 [T, K'] (-1: none) and their
    float32 `logprobs` [T, K'] in nats.

    Outcomes are the tokens that both sides name, and all others together, whose probability is what is left of 1.
    """
    same = reference.ids.long().unsqueeze(-1) == ids.cpu().unsqueeze(1)
    both, own = same.any(-1), logprobs.cpu().double().nan_to_num(nan=-torch.inf)
    log_q = own.unsqueeze(1).masked_fill(~same, -torch.inf).amax(-1)
    log_p = reference.logprobs.double().masked_fill(~both, -torch.inf)
    left = [reference.logprobs.double().masked_fill(both, -torch.inf), reference.tail_mass.double().log().unsqueeze(-1)]
    lumped_p = torch.cat([log_p, torch.cat(left, -1).logsumexp(-1, keepdim=True)], -1)
    lumped_p = lumped_p - lumped_p.logsumexp(-1, keepdim=True)
    # as likely as float32 may have rounded it from: then the bound can only be lower
    unrounded = log_q + torch.finfo(torch.float32).eps * (1.0 - log_q).masked_fill(~both, 0.0)
    hidden = (unrounded.exp() - log_q.exp()).sum(-1)
    rest = (1.0 - log_q.exp().sum(-1)).clamp(min=0.0) + hidden
    lumped_q = torch.cat([unrounded, rest.log().unsqueeze(-1)], -1)
    possible = lumped_p != -torch.inf
    bound = ((lumped_p - lumped_q) * lumped_p.exp()).masked_fill(~possible, 0.0).sum(-1)
    return (bound - _rounding(lumped_p, lumped_q, reference.logprobs.dtype)).clamp(min=0.0)


def _rounding(log_p: Tensor, log_q: Tensor, stored: torch.dtype) -> Tensor:
    """The most that rounding to `stored` can have added to KL(p || q), [T]; p and q over the same K + 1 outcomes.

    Each log p_i was rounded by at most d_i = u (1 + |log p_i|), the 1 being for the tail's mass; bringing them back to
    a distribution moves all by at most sum_j p_j d_j more. With m_i for both together KL moves by at most
    sum_i p_i m_i |log(p_i / q_i)| to first order, and by less than sum_i p_i m_i^2 beyond it.
    """
    unit = torch.finfo(stored).eps / 2
    possible = log_p != -torch.inf
    weight = log_p.exp()
    rounded = unit * (1.0 - log_p.masked_fill(~possible, 0.0))
    moved = rounded + (weight * rounded).sum(-1, keepdim=True)
    ratio = (log_p - log_q).abs().masked_fill(~possible | (log_q == -torch.inf), 0.0)
    return (weight * moved * (ratio + moved)).sum(-1)


ELEMENTS_PER_STEP = 2**24
"""About how many logits are in work at once."""


class TopKProbe(Probe):
    """A lower bound of the divergence on the documents of `base`.

    It works from `top_k` log-probabilities a position.
    """

    name = ProbeName.KL
    kind = "top-k"

    top_k: int

    def __init__(self, base: KLProbe, top_k: int) -> None:
        self.base, self.top_k = base, top_k
        settings = {"base": base.suite_sha256, "top_k": top_k, "version": 1}
        self.suite_fields = {**base.suite_fields, "top_k": str(top_k)}
        self.suite_sha256 = json_sha256(settings)

    def declared(self) -> tuple[DeclaredFigure, ...]:
        """The bound over all tokens, and what was not finite."""
        return tuple(metric.declared() for metric in (METRICS[self.name, NON_FINITE], LOWER_BOUND.metric))

    def plan(self, tokenizer: Any) -> Sequence[WorkItem]:
        """The other probe's items."""
        return self.base.plan(tokenizer)

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """The same items, which name the reference's likeliest tokens to an engine that gives those of few tokens."""
        return [_naming(item, digests[item.key]) if item.key in digests else item for item in items]

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """The reference's likeliest tokens of every scored position, and the mass of all others; never of NaN."""
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
            **request_tensors(item),
        }
        return Digest(values={"tokens": scored_tokens(item), "vocabulary": vocabulary}, tensors=tensors)

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        """One outcome per document with the sum of the bounds."""
        tokens = scored_tokens(item)
        error = results.error or reference.error
        detail = {"tokens": tokens} if error is not None else self._sums(engine, item, results, reference)
        score = detail["lower_bound"] / detail["finite_tokens"] if detail.get("finite_tokens") else None
        return [
            ItemOutcome(
                probe=self.name,
                group="corpus, top-k",
                item_key=item.key,
                cluster=self.base.cluster_of(item.key),
                branch=Answer(score=score, error=error, detail=detail),
                reference=Answer(score=None, detail={"tokens": tokens}),
            )
        ]

    def _sums(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> dict[str, Any]:
        bound = self._bounds(engine, item, results, reference)
        finite = bound.isfinite()
        return {
            "tokens": len(bound),
            "finite_tokens": int(finite.sum()),
            "lower_bound": float(bound[finite].sum()),
        }

    def _bounds(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> Tensor:
        parts, begin = [], 0
        if engine.scores == "likeliest":
            return self._bounds_of_likeliest(engine, item, results, reference)
        for logits in _logits(engine, item, results):
            rows = slice(begin, begin + len(logits))
            stored = TopK(*(reference.tensors[name][rows] for name in ("ids", "logprobs", "tail_mass")))
            parts.append(lower_bound(stored, logits))
            begin += len(logits)
        return torch.cat(parts)

    def _bounds_of_likeliest(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> Tensor:
        ids, logprobs = engine.likeliest(scored_states(item, results))
        stored = [reference.tensors[name] for name in ("ids", "logprobs", "tail_mass")]
        step = max(1, ELEMENTS_PER_STEP // (ids.shape[-1] * stored[0].shape[-1]))
        parts = [
            lower_bound_of_likeliest(TopK(*(each[begin : begin + step] for each in stored)), own, values)
            for begin, own, values in zip(
                range(0, len(ids), step), torch.split(ids, step), torch.split(logprobs, step), strict=True
            )
        ]
        return torch.cat(parts)

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """The bound, which is never reported as a divergence.

        Tokens without a finite bound are counted as those without a finite divergence are, and enter no mean.
        """
        census = non_finite_tokens(outcomes)
        yield census
        clusters = _clusters(outcomes)
        if sum(clusters.units):
            note = f"from the {self.top_k} likeliest tokens; KL is at least this"
            missing = left_out(int(census.value), census.counts.scored)
            yield measurement(LOWER_BOUND.metric, ALL, clusters, joined(note, missing))


def _naming(item: WorkItem, reference: Digest) -> WorkItem:
    """The item, each request with the reference's ids of its rows; as it is where the reference was not measured."""
    if reference.error is not None:
        return item
    ids, begin, requests = reference.tensors["ids"], 0, []
    for request in item.scores:
        end = begin + len(request.token_ids) - request.first
        requests.append(replace(request, named=ids[begin:end].numpy()))
        begin = end
    return replace(item, scores=tuple(requests))


def _clusters(outcomes: Sequence[ItemOutcome]) -> Clusters:
    """The sums of the bounds by cluster."""
    details = [outcome.branch.detail for outcome in outcomes]
    grouping = Grouping.of(outcomes)
    return Clusters(
        units=grouping.counts(int(detail.get("finite_tokens", 0)) for detail in details),
        branch=grouping.sums(float(detail.get(LOWER_BOUND.column, 0.0)) for detail in details),
        errored=grouping.counts(map(errored_tokens, outcomes)),
        names=grouping.names,
    )


def _logits(engine: Engine, item: WorkItem, results: ItemResults) -> Iterator[Tensor]:
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
