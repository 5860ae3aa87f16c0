"""One token of a Gated DeltaNet layer in as few passes over its state as the device allows.

Without a kernel package, transformers decodes with a reference implementation written for readability: every product
with the state is stored elementwise and then summed. On a CPU a step of a small model spends most of its time on that.
On a GPU `fused_layers` has a kernel for it.
"""

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-6
"""Under the root of a norm, as in transformers and flash-linear-attention."""


def delta_step(
    query: Tensor, key: Tensor, value: Tensor, *, g: Tensor, beta: Tensor, initial_state: Tensor, **others: Any
) -> tuple[Tensor, Tensor]:
    """One token: its output [B, 1, H, Dv] and the state [B, H, Dk, Dv] after it, in float32.

    S' = exp(g) S + k (beta (v - k exp(g) S)), o = q S' / sqrt(Dk), with q and k of length one (Yang et al. 2024,
    arXiv 2412.06464, equation 10, transposed). `query` and `key` are [B, 1, H, Dk], `value` [B, 1, H, Dv], `g` and
    `beta` [B, 1, H]. `initial_state` itself becomes the new state, which the cache that owns it holds.
    """
    batch, heads, width = value.shape[0], value.shape[2], value.shape[3]
    rows = batch * heads
    q, k = (_of_length_one(x.float()).reshape(rows, 1, -1) for x in (query, key))
    state = initial_state.view(rows, -1, width)
    state.mul_(g.float().exp().reshape(rows, 1, 1))
    correction = (value.float().reshape(rows, 1, width) - torch.bmm(k, state)) * beta.float().reshape(rows, 1, 1)
    state.baddbmm_(k.transpose(1, 2), correction)
    output = torch.bmm(q * q.shape[-1] ** -0.5, state)
    return output.view(batch, 1, heads, width).to(query.dtype), initial_state


def _of_length_one(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPSILON)
