"""Exact per-token divergences over the full vocabulary, in float32 log-probabilities and float64 sums."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenDivergences:
    """Per scored token, each [T]; p is the reference, q the branch.

    `forward_kl` = KL(p || q) and `reverse_kl` = KL(q || p) in nats; `reference_nll` and `branch_nll` are the negative
    log-probabilities of the label in nats; `top1_agrees` says whether both have the same argmax; `finite` marks the
    tokens where every branch logit is a number (the others count in no figure but their own).
    """

    forward_kl: torch.Tensor
    reverse_kl: torch.Tensor
    reference_entropy: torch.Tensor
    reference_nll: torch.Tensor
    branch_nll: torch.Tensor
    top1_agrees: torch.Tensor
    finite: torch.Tensor


def kl_divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) in nats over the last dimension, from log-probabilities.

    Where p is 0 the term is 0 whatever q is; where q is 0 and p is not, the result is +inf (never clipped). The sum
    runs in float64, and what rounding leaves below zero is returned as zero, since a divergence cannot be negative.
    """
    terms = log_p.exp().double() * (log_p.double() - log_q.double())
    terms = terms.masked_fill(log_p == -torch.inf, 0.0)
    return terms.sum(-1).clamp(min=0.0)


def token_divergences(
    reference_logits: torch.Tensor, branch_logits: torch.Tensor, labels: torch.Tensor
) -> TokenDivergences:
    """All per-token figures from float32 logits [T, V] of both deployments and the labels [T]."""
    log_p = torch.log_softmax(reference_logits.float(), dim=-1)
    log_q = torch.log_softmax(branch_logits.float(), dim=-1)
    rows = torch.arange(labels.numel(), device=labels.device)
    return TokenDivergences(
        forward_kl=kl_divergence(log_p, log_q),
        reverse_kl=kl_divergence(log_q, log_p),
        reference_entropy=-(log_p.exp().double() * log_p.double()).nan_to_num(0.0).sum(-1),
        reference_nll=-log_p[rows, labels].double(),
        branch_nll=-log_q[rows, labels].double(),
        top1_agrees=log_p.argmax(-1) == log_q.argmax(-1),
        finite=~(log_q.isnan().any(-1)),
    )
