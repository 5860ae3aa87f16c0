"""Exact per-token figures of a branch against its reference over the full vocabulary: portable code, in float64."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

ELEMENTS_PER_STEP = 2**15
"""The approximate number of logits processed at once: four float64 copies of them fit into 1 MiB, one core's cache."""


@dataclass(frozen=True)
class TokenFigures:
    """Per scored token, each [T] on the CPU; p is the reference, q the branch.

    `forward_kl` = KL(p || q), `reverse_kl` = KL(q || p), `reference_entropy` = H(p), in nats, never negative;
    `reference_logprob` and `branch_logprob` are the log-probabilities of the label in nats; `top1_rank` is the number
    of tokens more likely under the branch than the reference's most likely token (the first one of a tie), and
    `top1_agrees` is true if it is zero. All figures are float64, except for the last two: int64 and boolean.

    If either deployment's logits are not a distribution (NaN, +inf, or all -inf), every real figure is NaN, the
    agreement False and the rank -1. If the branch gives probability zero to a token that the reference allows,
    `forward_kl` is +inf (never clipped), and likewise in the other direction.
    """

    forward_kl: Tensor
    reverse_kl: Tensor
    reference_entropy: Tensor
    reference_logprob: Tensor
    branch_logprob: Tensor
    top1_agrees: Tensor
    top1_rank: Tensor

    @property
    def finite(self) -> Tensor:
        """Boolean [T]: both divergences and both log-probabilities are finite; other tokens enter no average."""
        columns = (self.forward_kl, self.reverse_kl, self.reference_logprob, self.branch_logprob)
        return torch.stack([column.isfinite() for column in columns]).all(dim=0)

    @classmethod
    def concatenated(cls, parts: "Sequence[TokenFigures]") -> "TokenFigures":
        """The figures of consecutive ranges of tokens as one."""
        return cls(*(torch.cat([getattr(part, column.name) for part in parts]) for column in fields(cls)))


def token_figures(reference_logits: Tensor, branch_logits: Tensor, labels: Tensor) -> TokenFigures:
    """All per-token figures from the logits [T, V] of both deployments and the labels [T], on any device.

    KL(p || q) = sum_v p_v (log p_v - log q_v), with 0 log 0 = 0 (Kullback and Leibler 1951, eq. 2.4).
    """
    parts = [
        _figures(reference_logits[rows].double(), branch_logits[rows].double(), labels[rows])
        for rows in _runs(len(labels), reference_logits.shape[-1])
    ]
    return TokenFigures.concatenated(parts)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) in nats over the last dimension, from log-probabilities.

    If p is 0 the term is 0 whatever q is; if q is 0 and p is not, the result is +inf (never clipped). A negative result
    of rounding is returned as zero, since a divergence cannot be negative.
    """
    impossible = log_p == -torch.inf
    terms = (log_p - log_q).mul_(log_p.exp())
    # explicit, because a p below its number format's range would turn 0 times infinity into NaN
    terms.masked_fill_((log_q == -torch.inf) & ~impossible, torch.inf)
    return terms.masked_fill_(impossible, 0.0).sum(-1).clamp(min=0.0)


def _figures(reference: Tensor, branch: Tensor, labels: Tensor) -> TokenFigures:
    """The figures of one range of rows in float64, both shifted so that their largest logit is 0."""
    a, b = (logits - logits.amax(-1, keepdim=True) for logits in (reference, branch))
    weight_a, weight_b = a.exp(), b.exp()
    total_a, total_b = weight_a.sum(-1), weight_b.sum(-1)
    log_a, log_b = total_a.log(), total_b.log()
    difference = a - b
    forward = torch.linalg.vecdot(weight_a, difference) / total_a - (log_a - log_b)
    reverse = (log_a - log_b) - torch.linalg.vecdot(weight_b, difference) / total_b
    entropy = log_a - torch.linalg.vecdot(weight_a, a) / total_a
    # an impossible token, NaN and +inf each make a sum non-finite: checking the sums checks all logits
    if not bool((forward + reverse + entropy).isfinite().all()):
        return _guarded(reference, branch, labels)
    rows = torch.arange(len(labels), device=labels.device)
    rank = _rank(b, a.argmax(-1))
    columns = [column.clamp(min=0.0) for column in (forward, reverse, entropy)]
    columns += [a[rows, labels] - log_a, b[rows, labels] - log_b, rank == 0, rank]
    return TokenFigures(*(column.cpu() for column in columns))


def _rank(branch: Tensor, likeliest: Tensor) -> Tensor:
    """The number of entries in each row of `branch` [R, V] that exceed the entry at `likeliest` [R]."""
    mark = branch.gather(-1, likeliest.unsqueeze(-1))
    rank = torch.zeros_like(likeliest)
    behind = (mark.squeeze(-1) < branch.amax(-1)).nonzero().squeeze(-1)  # few
    rank[behind] = (branch[behind] > mark[behind]).sum(-1)
    return rank


def _guarded(reference: Tensor, branch: Tensor, labels: Tensor) -> TokenFigures:
    """The same for rows with impossible tokens, or with logits that are not a distribution."""
    log_p, log_q = torch.log_softmax(reference, dim=-1), torch.log_softmax(branch, dim=-1)
    rows = torch.arange(len(labels), device=labels.device)
    entropy = (log_p.exp() * -log_p).masked_fill_(log_p == -torch.inf, 0.0).sum(-1).clamp(min=0.0)
    real = kl_divergence(log_p, log_q), kl_divergence(log_q, log_p), entropy, log_p[rows, labels], log_q[rows, labels]
    broken = (log_p.isnan() | log_q.isnan()).any(-1)
    rank = _rank(log_q, log_p.argmax(-1)).masked_fill(broken, -1)
    columns = [*(figure.masked_fill(broken, torch.nan) for figure in real), rank == 0, rank]
    return TokenFigures(*(column.cpu() for column in columns))


def _runs(rows: int, vocabulary: int) -> Iterator[slice]:
    step = max(1, ELEMENTS_PER_STEP // vocabulary)
    for begin in range(0, rows, step):
        yield slice(begin, begin + step)
    if rows == 0:
        yield slice(0, 0)
