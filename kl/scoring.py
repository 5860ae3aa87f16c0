"""Per-token figures from final hidden states: the reference's logits rebuilt through its own head, in chunks."""

import torch
from torch import Tensor

from kl.divergence import TokenFigures, token_figures
from q36eval.engines.base import Engine
from q36eval.engines.heads import float32_logits

CPU_TILE_BYTES = 2**26
"""Bytes of one deployment's logits at a time on a CPU."""


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
        parts = []
        device = branch_states.device
        self._head = self._head.to(device)
        step = self._rows()
        for begin in range(0, max(len(labels), 1), step):
            rows = slice(begin, begin + step)
            reference = float32_logits(reference_states[rows].to(device), self._head)
            branch = self.engine.logits(branch_states[rows])
            parts.append(token_figures(reference, branch, labels[rows].to(device)))
        return TokenFigures.concatenated(parts)

    def _rows(self) -> int:
        """Rows whose logits fill a tile."""
        return max(1, CPU_TILE_BYTES // (4 * len(self._head)))
