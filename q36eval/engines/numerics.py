"""The version of what an in-process engine computes, part of every deployment's identity; and its logits in float32.

References and kept answers of another version are of another deployment: they are captured and evaluated again. A
change of code alone is no change of numbers; `tests/q36eval/test_numerics.py` holds recorded logits, hidden states,
scores (alone and after a shared prefix), generated answers and draws, and fails where they move and the version did
not. It computes in float32 on a CPU: what moves in BF16 alone, or on a GPU alone, is for whoever changes it to know.
"""

import weakref

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

NUMERICS_VERSION = 1
"""Raised with every change that may move a number, each with what it changed:

1. What the engine computes, decodes, emulates and draws on 2026-11-22; before it, the code's own hash stood here.
"""

MOST_KEPT = 2**26
"""Values of a head that is kept in float32: at most 256 MiB."""
_kept: list[tuple["weakref.ref[Tensor]", int, Tensor]] = []


def rounded(logits: Tensor) -> Tensor:
    """Logits as most engines keep them: in BF16."""
    return logits.to(torch.bfloat16).float()


def float32_logits(states: Tensor, weight: Tensor) -> Tensor:
    """Logits [T, V] of `states` [T, H] through the head `weight` [V, H], products accumulated in float32.

    Nothing is rounded to BF16 on the way: that would put noise of its own into a small divergence. On a GPU the product
    takes BF16 operands as they are; elsewhere they are widened first, which gives the same products.
    """
    if states.is_cuda and states.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(states, weight.T, out_dtype=torch.float32)
    return F.linear(states.float(), _widened(weight))


def _widened(weight: Tensor) -> Tensor:
    """A head in float32; the last two are kept, since a divergence takes the reference's and the branch's in turn."""
    if weight.is_cuda or weight.dtype == torch.float32 or weight.is_inference() or weight.numel() > MOST_KEPT:
        return weight.float()
    for at, (known, version, wide) in enumerate(_kept):
        if known() is weight and version == weight._version:
            _kept.append(_kept.pop(at))
            return wide
    _kept.append((weakref.ref(weight), weight._version, weight.float()))
    del _kept[:-2]
    return _kept[-1][2]
