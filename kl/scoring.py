"""Per-token figures from final hidden states: the reference's logits rebuilt through its own head, in chunks."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from q36eval.engines.base import Engine
from q36eval.engines.device_memory import free_on
from q36eval.engines.logits import OutputHead
from q36eval.kl.divergence import TokenFigures, token_figures

CPU_TILE_BYTES = 2**26
GPU_TILE_BYTES = 2**30
"""Bytes of one deployment's logits at a time: 1,024 tokens of 248,320 logits, if four times as much is free. A head is
read once per tile: with 256 tokens an H100 takes 1.22 times as long for heads and divergence."""
GPU_TILE_ROWS = (1024, 512, 256, 128)
"""A GPU's matrix product works on 128 rows at a time. In such steps other uses of memory seldom change a tile."""


class Scorer:
    """Compares one branch with one reference; the reference's head is moved to the branch's device once.

    `head` is the reference's; `engine` computes the branch's logits with its own head.
    """

    def __init__(self, engine: Engine, head: OutputHead) -> None:
        self.engine = engine
        self._head = head

    @torch.inference_mode()
    def figures(self, reference_states: Tensor, branch_states: Tensor, labels: Tensor) -> TokenFigures:
        """Figures of T tokens from hidden states after the final norm, [T, H] of both deployments, and labels [T]."""
        device = branch_states.device
        self._head = self._head.to(device)
        reference_states, labels = _brought(reference_states, device), _brought(labels, device)
        step = self._rows(device)
        runs = [slice(begin, begin + step) for begin in range(0, max(len(labels), 1), step)]
        if not is_usable(device):
            parts = [self._portable(reference_states[run], branch_states[run], labels[run]) for run in runs]
            return TokenFigures.concatenated(parts)
        buffer = FigureBuffer(len(labels), device)
        for run in runs:
            reference = self._head.logits(reference_states[run])
            buffer.fill(run.start, reference, self.engine.logits(branch_states[run]), labels[run])
            del reference  # before the next tile is allocated
        return buffer.figures()

    @torch.inference_mode()
    def reference_faults(self, reference_states: Tensor, figures: TokenFigures) -> int:
        """The number of these T tokens at which the reference's own logits are no distribution (NaN, +inf, all -inf).

        The figures of such a token are NaN whichever side is at fault, so only NaN tokens are checked again: [T, H]
        states and their figures. The remaining NaN tokens are the branch's fault.
        """
        rows = figures.reference_logprob.isnan().nonzero().squeeze(-1)
        faults, step = 0, self._rows(self._head.weight.device)
        for begin in range(0, len(rows), step):
            states = _brought(
                reference_states[rows[begin : begin + step].to(reference_states.device)], self._head.weight.device
            )
            # NaN and +inf propagate to a row's largest logit, which is -inf only if all are
            faults += int((~self._head.logits(states).amax(-1).isfinite()).sum())
        return faults

    @torch.inference_mode()
    def likeliest(self, reference_states: Tensor, branch_states: Tensor) -> list[tuple[int, float, int, float]]:
        """For R tokens, from states [R, H] as in `figures`, the most likely token of each deployment: its id and its
        log-probability in nats, the reference's, then the branch's."""
        device = branch_states.device
        logits = self._head.logits(_brought(reference_states, device)), self.engine.logits(branch_states)
        sides = [torch.log_softmax(each.double(), -1).max(-1) for each in logits]
        columns = [column.tolist() for side in sides for column in (side.indices, side.values)]
        return list(zip(*columns, strict=True))

    def _portable(self, reference_states: Tensor, branch_states: Tensor, labels: Tensor) -> TokenFigures:
        reference = self._head.logits(reference_states)
        return token_figures(reference, self.engine.logits(branch_states), labels)

    def _rows(self, device: torch.device) -> int:
        """Rows whose logits fill a tile: two tiles are held at a time."""
        tile = CPU_TILE_BYTES
        if device.type == "cuda":
            tile = min(GPU_TILE_BYTES, free_on(device)[1] // 4)
        rows = max(1, tile // (4 * len(self._head.weight)))
        return next((step for step in GPU_TILE_ROWS if step <= rows), rows) if device.type == "cuda" else rows


def _brought(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy to a GPU goes through pinned memory and does not block."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


BLOCK, WARPS, REGISTERS = 2048, 16, 64
"""The fastest of 50 variants on an H200: two programs of 512 threads per multiprocessor."""

REAL_COLUMNS = 5


def is_usable(device: torch.device) -> bool:
    """Whether this device is a GPU and Triton is available."""
    if device.type != "cuda":
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


class FigureBuffer:
    """Figures of T tokens on the device, filled tile by tile without blocking, copied to the host once."""

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
        """The filled figures, on the CPU; waits for the device."""
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


@cache
def _kernel() -> Any:
    """The compiled kernel; Triton is imported only if a GPU is used."""
    from q36eval.kl._fused_kernel import row_figures

    return row_figures
