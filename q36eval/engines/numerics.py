"""The version of an in-process engine's numbers, part of every deployment's identity; and its logits in float32.

References and stored answers of another version belong to another deployment: they are captured and evaluated again. A
change of code alone is not a change of numbers; `tests/q36eval/test_numerics.py` holds recorded logits, hidden states,
scores (alone and after a shared prefix), generated answers and draws, and fails if they change and the version does
not. It computes in float32 on a CPU: changes only in BF16 or on a GPU are the author's responsibility.
"""

import weakref

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor

NUMERICS_VERSION = 1
"""Raised with every change that may change a number; each version's change:

1. What the engine computes, decodes, emulates and draws on 2026-11-22; before it, this was the hash of the code.
"""

MOST_KEPT = 2**26
"""Maximum number of values of a head stored in float32: at most 256 MiB."""
_kept: list[tuple["weakref.ref[Tensor]", int, Tensor]] = []


def rounded(logits: Tensor) -> Tensor:
    """Logits with the rounding of most engines: in BF16."""
    return logits.to(torch.bfloat16).float()


def float32_logits(states: Tensor, weight: Tensor) -> Tensor:
    """Logits [T, V] of `states` [T, H] through the head `weight` [V, H], products accumulated in float32.

    Nothing is rounded to BF16 on the way, which would add noise to a small divergence. On a GPU the product takes BF16
    operands directly; elsewhere they are widened first, which gives the same products.
    """
    if states.is_cuda and states.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(states, weight.T, out_dtype=torch.float32)
    return F.linear(states.float(), _widened(weight))


def _widened(weight: Tensor) -> Tensor:
    """A head in float32; the last two are cached, since a divergence alternates between the reference's and the
    branch's."""
    if weight.is_cuda or weight.dtype == torch.float32 or weight.is_inference() or weight.numel() > MOST_KEPT:
        return weight.float()
    for at, (known, version, wide) in enumerate(_kept):
        if known() is weight and version == weight._version:
            _kept.append(_kept.pop(at))
            return wide
    _kept.append((weakref.ref(weight), weight._version, weight.float()))
    del _kept[:-2]
    return _kept[-1][2]
