"""The per-token figures on a GPU: one pass over both tiles of logits, no log-softmax in memory.

Every lane keeps an online softmax of its own (Milakov and Gimelshein, arXiv 1805.02867) of each deployment, with the
sums that the figures are made of; lanes are joined, and the figures computed, in float64. One exponential per logit: of
the running maximum and the new value, the larger one's term is 1.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from q36eval.kl.divergence import TokenFigures

BLOCK, WARPS, REGISTERS = 2048, 16, 64
"""The fastest of 50 variants on an H200: two programs of 512 threads to a multiprocessor."""

REAL_COLUMNS = 5


def is_usable(device: torch.device) -> bool:
    """Whether this device is a GPU that Triton is here for."""
    if device.type != "cuda":
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


class FigureBuffer:
    """Figures of T tokens on the device, filled tile by tile without waiting for it, copied to the host once."""

    def __init__(self, tokens: int, device: torch.device) -> None:
        self._real = torch.full((tokens, REAL_COLUMNS), torch.nan, dtype=torch.float64, device=device)
        self._rank = torch.full((tokens,), -1, dtype=torch.int32, device=device)

    def fill(self, begin: int, reference_logits: Tensor, branch_logits: Tensor, labels: Tensor) -> None:
        """Figures of rows [begin, begin + R) from float32 logits [R, V], contiguous along V, and labels [R]."""
        rows, vocabulary = reference_logits.shape
        if rows == 0:
            return
        _kernel()[(rows,)](
            reference_logits,
            branch_logits,
            labels,
            self._real[begin:],
            self._rank[begin:],
            reference_logits.stride(0),
            branch_logits.stride(0),
            vocabulary,
            block=BLOCK,
            num_warps=WARPS,
            maxnreg=REGISTERS,
        )

    def figures(self) -> TokenFigures:
        """What was filled, on the CPU; waits for the device."""
        real, rank = self._real.cpu(), self._rank.cpu().long()
        forward, reverse, entropy, reference_logprob, branch_logprob = real.unbind(dim=1)
        return TokenFigures(
            forward_kl=forward,
            reverse_kl=reverse,
            reference_entropy=entropy,
            reference_logprob=reference_logprob,
            branch_logprob=branch_logprob,
            top1_agrees=rank == 0,
            top1_rank=rank,
        )


def fused_figures(reference_logits: Tensor, branch_logits: Tensor, labels: Tensor) -> TokenFigures:
    """As `kl.divergence.token_figures`, of float32 logits [T, V] on a GPU."""
    buffer = FigureBuffer(len(labels), reference_logits.device)
    buffer.fill(0, reference_logits, branch_logits, labels)
    return buffer.figures()


@cache
def _kernel() -> Any:
    """The compiled kernel; Triton is imported where a GPU wants it, and nowhere else."""
    from q36eval.kl._fused_kernel import row_figures

    return row_figures
