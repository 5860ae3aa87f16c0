"""KL from the K likeliest tokens and the mass of the rest: a lower bound on the exact divergence.

For engines that give log-probabilities of a few tokens and no hidden states. All tokens outside the reference's K are
lumped into one. By the log-sum inequality (Cover and Thomas 2006, theorem 2.7.1) lumping outcomes together never raises
a divergence: sum_i p_i log(p_i / q_i) >= (sum_i p_i) log(sum_i p_i / sum_i q_i). So KL over the lumped outcomes is at
most KL over the vocabulary, grows with K, and equals it at K = V.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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

    @classmethod
    def of_logprobs(cls, ids: Tensor, logprobs: Tensor) -> "TopK":
        """From what an engine answers, ids [T, K] and log-probabilities [T, K]; the tail is what they leave of 1."""
        tail = (1.0 - logprobs.double().exp().sum(-1)).clamp(min=0.0)
        return cls(ids.int(), logprobs, tail)


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
