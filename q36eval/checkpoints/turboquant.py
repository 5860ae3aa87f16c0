"""Keys and values as vLLM's TurboQuant caches give them back: rotated keys on a normal's centroids, uniform values.

Zandieh et al., TurboQuant (arXiv 2504.19874), without its second stage (QJL), as vLLM serves it since
https://github.com/vllm-project/vllm/pull/38479 and, for hybrids, https://github.com/vllm-project/vllm/pull/39931;
formulas from `turboquant/config.py`, `turboquant/centroids.py`, `triton_turboquant_store.py` and
`triton_turboquant_decode.py` there. One head's key x of D dimensions:

    n = |x|, y = H x / (n + 1e-8), i = the nearest centroid of each y; stored are i in 3 or 4 bits and n in FP16
    read back: n H c / sqrt(|c|² + 1e-16), c the centroids of i ("nc": norm correction, in every preset that rotates)

H is Sylvester's Hadamard matrix over sqrt(D), its own inverse, the same in all layers and without random signs. One
head's value v: s = max((max v - min v) / levels, 1e-8) with 7 or 15 levels, i = trunc((v - min v) / s + 1/2), stored
beside s and min v in FP16; read back: i s + min v. `k8v4` stores keys in FP8 E4M3 without a scale and without rotation.

vLLM skips no full-attention layer of a hybrid (it does skip the outer two of a dense model) and reads no stored scales.
Its decoding reads every token from the cache, its own included, and so does a prompt that continues a cached one by at
most 128 tokens; the first chunk of a prompt reads its own keys and values unquantized, and what a chunk is depends on
the scheduler. Here every token reads what is stored, whatever the chunks: a long prompt is judged more strictly than
it is served. An engine that is given these keys in BF16 rounds them once more, as is done here; vLLM's decoding
multiplies them in float32.
"""

import math
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRESETS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key's and of a value's element, by vLLM's name for `--kv-cache-dtype`; 8 are FP8."""
ROUNDS, TOLERANCE, INTERVALS = 200, 1e-10, 200
"""vLLM's Lloyd-Max search stops here, which 4 bits reach before it has converged."""


def fits(preset: str, head_dim: int) -> bool:
    """Whether heads of that size can be stored: a Hadamard matrix of this construction has a power of two as order."""
    return PRESETS[preset][0] == 8 or head_dim & (head_dim - 1) == 0


def round_trip_keys(x: "Tensor", bits: int) -> "Tensor":
    """Keys [..., D] after storing and reading, in the dtype of `x`; D is a power of two.

    A norm beyond the range of FP16 becomes an infinity, and so the key.
    """
    import torch

    head_dim = x.shape[-1]
    rotation = hadamard(head_dim, x.device)
    table = centroids(head_dim, bits).to(x.device)
    norms = x.float().norm(dim=-1, keepdim=True)
    rotated = (x.float() / (norms + 1e-8)) @ rotation
    nearest = table[torch.bucketize(rotated, (table[:-1] + table[1:]) / 2, right=True)]
    directions = nearest * (nearest.square().sum(-1, keepdim=True) + 1e-16).rsqrt()
    restored: Tensor = norms.half().float() * directions @ rotation
    return restored.to(x.dtype)


def round_trip_values(x: "Tensor", bits: int) -> "Tensor":
    """Values [..., D] after storing and reading, in the dtype of `x`; what FP16 cannot hold is not saturated."""
    lowest, highest = x.float().aminmax(dim=-1, keepdim=True)
    levels = 2**bits - 1
    scales = ((highest - lowest) / levels).clamp(min=1e-8)
    codes = ((x.float() - lowest) / scales + 0.5).trunc().clamp(0, levels)
    restored: Tensor = codes * scales.half().float() + lowest.half().float()
    return restored.to(x.dtype)


@cache
def hadamard(order: int, device: "torch.device | str" = "cpu") -> "Tensor":
    """Sylvester's matrix [order, order] over its root: entries are negative where row and column share an odd number of
    set bits."""
    import torch

    index = torch.arange(order)
    shared, signs = index[:, None] & index[None, :], torch.ones(order, order)
    for bit in range(order.bit_length()):
        signs = signs * (1 - 2 * (shared >> bit & 1))
    return (signs / math.sqrt(order)).to(device)


@cache
def centroids(head_dim: int, bits: int) -> "Tensor":
    """Centroids [2**bits] of a normal of variance 1/`head_dim`, ascending, float32, as vLLM's search finds them.

    Lloyd (1982) and Max (1960): boundaries lie midway between centroids, centroids are the means between boundaries.
    Both integrals of a mean are taken by the trapezoidal rule over `INTERVALS` parts, the outer ones to 10.5 standard
    deviations, from centroids spread evenly over ±3.5; 2.2e-3 standard deviations at most from where it would converge.
    """
    import torch

    count = 2**bits
    found = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 7 - 3.5
    end = torch.tensor([10.5], dtype=torch.float64)
    steps = torch.linspace(0, 1, INTERVALS + 1, dtype=torch.float64)
    for _ in range(ROUNDS):
        edges = torch.cat([-end, (found[:-1] + found[1:]) / 2, end])
        x = edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * steps  # [count, INTERVALS + 1]
        density = torch.exp(-x.square() / 2)
        means = torch.trapezoid(x * density, x) / torch.trapezoid(density, x)
        converged = float((means - found).abs().max()) / math.sqrt(head_dim) < TOLERANCE
        if converged:
            break
        found = means
    of_heads: Tensor = found / math.sqrt(head_dim)
    return of_heads.float()
