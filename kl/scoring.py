"""Per-token figures from final hidden states: the reference's logits rebuilt through its own head, in chunks."""

import torch
from torch import Tensor

from q36eval.engines.base import Engine
from q36eval.engines.heads import float32_logits
from q36eval.kl.divergence import TokenFigures, token_figures
from q36eval.kl.fused import FigureBuffer, is_usable

CPU_TILE_BYTES = 2**26
GPU_TILE_BYTES = 2**28
"""Bytes of one deployment's logits at a time: 256 tokens of 248,320 logits. Two tiles are as much as one of 512 tokens,
which an engine holds that makes logits by itself."""
GPU_TILE_ROWS = 128
"""A GPU's matrix product works on so many rows at a time; rows beyond a multiple of it cost as much as all of them."""


class Scorer:
    """Compares one branch with one reference; the reference's head is brought to the branch's device once.

    `head` is the reference's [V, H]; `engine` gives the branch's logits through its own head.
    """

    def __init__(self, engine: Engine, head: Tensor) -> None:
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
            reference = float32_logits(reference_states[run], self._head)
            buffer.fill(run.start, reference, self.engine.logits(branch_states[run]), labels[run])
            del reference  # before the next tile is made
        return buffer.figures()

    @torch.inference_mode()
    def reference_faults(self, reference_states: Tensor, figures: TokenFigures) -> int:
        """At how many of these T tokens the reference's own logits are no distribution (NaN, +inf or -inf throughout).

        Such a token's figures are NaN whosever fault it is, so only those are looked at again: [T, H] states and their
        figures. What is left of them is the branch's.
        """
        rows = figures.reference_logprob.isnan().nonzero().squeeze(-1)
        faults, step = 0, self._rows(self._head.device)
        for begin in range(0, len(rows), step):
            states = _brought(
                reference_states[rows[begin : begin + step].to(reference_states.device)], self._head.device
            )
            # NaN and +inf carry over to a row's largest logit, which is -inf only where all are
            faults += int((~float32_logits(states, self._head).amax(-1).isfinite()).sum())
        return faults

    def _portable(self, reference_states: Tensor, branch_states: Tensor, labels: Tensor) -> TokenFigures:
        reference = float32_logits(reference_states, self._head)
        return token_figures(reference, self.engine.logits(branch_states), labels)

    def _rows(self, device: torch.device) -> int:
        """Rows whose logits fill a tile: two tiles are held at a time."""
        tile = CPU_TILE_BYTES
        if device.type == "cuda":
            tile = min(GPU_TILE_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
        rows = max(1, tile // (4 * len(self._head)))
        return rows - rows % GPU_TILE_ROWS if device.type == "cuda" and rows > GPU_TILE_ROWS else rows


def _brought(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy to a GPU goes through pinned memory, so that nobody waits for it."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
