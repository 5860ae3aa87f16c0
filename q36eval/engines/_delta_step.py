# mypy: ignore-errors
"""The Triton kernel of one decoding step of a Gated DeltaNet layer: the state is read once and written in place."""

import triton
import triton.language as tl


@triton.jit
def delta_step(
    query, key, value, g, beta, state, output, keys: tl.constexpr, values: tl.constexpr, block: tl.constexpr
):
    """For each row and head: state [keys, values] after the token, and its output [values]; as `decoding.delta_step`.

    `query`, `key` [N, keys], `value`, `output` [N, values] and `g`, `beta` [N] are of all rows and heads, one after
    the other; a program takes `block` of the values.
    """
    at = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, keys)
    j = tl.program_id(1) * block + tl.arange(0, block)
    q = tl.load(query + at * keys + i).to(tl.float32)
    k = tl.load(key + at * keys + i).to(tl.float32)
    q = q * (tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6) / tl.sqrt(1.0 * keys))
    k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
    place = state + (at * keys + i)[:, None] * values + j[None, :]
    s = tl.load(place) * tl.exp(tl.load(g + at).to(tl.float32))
    v = tl.load(value + at * values + j).to(tl.float32)
    correction = (v - tl.sum(s * k[:, None], axis=0)) * tl.load(beta + at).to(tl.float32)
    s += k[:, None] * correction[None, :]
    tl.store(place, s)
    tl.store(output + at * values + j, tl.sum(s * q[:, None], axis=0).to(output.dtype.element_ty))
