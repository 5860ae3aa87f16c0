# mypy: ignore-errors
"""Triton kernels behind `experts`: rows in the order of their experts, products with them, and their weighted sum."""

import triton
import triton.language as tl


@triton.jit
def order_by_expert(chosen, order, place, expert, ends, count, block: tl.constexpr):
    """Program e: the places of `chosen` [count] that hold expert e, sorted, from its first row on; and where it ends.

    `order` and `place` are each other's inverse, `expert` is `chosen` in that order.
    """
    e = tl.program_id(0)
    at = tl.arange(0, block)
    ids = tl.load(chosen + at, mask=at < count, other=1 << 30)
    before = tl.sum((ids < e).to(tl.int32), axis=0)
    own = ids == e
    ranks = tl.cumsum(own.to(tl.int32), axis=0) - 1
    tl.store(order + before + ranks, at.to(tl.int64), mask=own)
    tl.store(place + at, (before + ranks).to(tl.int64), mask=own)
    tl.store(expert + before + ranks, tl.zeros_like(at).to(tl.int64) + e, mask=own)
    tl.store(ends + e, before + tl.sum(own.to(tl.int32), axis=0))


@triton.jit
def routed(logits, scores, chosen, experts: tl.constexpr, top_k: tl.constexpr, slots: tl.constexpr):
    """Row r: the `top_k` likeliest of the softmax of its logits, and their shares of what these hold together.

    Of equally likely experts the first is taken.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, experts)
    stored = tl.load(logits + row * experts + at)
    values = stored.to(tl.float32)
    shares = tl.exp(values - tl.max(values, axis=0))
    shares = shares / tl.sum(shares, axis=0)
    slot = tl.arange(0, slots)
    kept = tl.zeros([slots], tl.float32)
    ids = tl.zeros([slots], tl.int64)
    left = shares
    for k in tl.static_range(top_k):
        best = tl.argmax(left, axis=0, tie_break_left=True)
        kept = tl.where(slot == k, tl.max(left, axis=0), kept)
        ids = tl.where(slot == k, best.to(tl.int64), ids)
        left = tl.where(at == best, -1.0, left)
    kept = kept / tl.sum(kept, axis=0)
    tl.store(scores + row * top_k + slot, kept.to(scores.dtype.element_ty), mask=slot < top_k)
    tl.store(chosen + row * top_k + slot, ids, mask=slot < top_k)


@triton.jit
def with_shared(rows, shared, gate, out, width, block: tl.constexpr):
    """Row r of `out` [N, width]: rows + sigmoid(gate) shared, rounded after each operation."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    own = tl.load(rows + row * width + at, mask=inside, other=0.0)
    other = tl.load(shared + row * width + at, mask=inside, other=0.0).to(tl.float32)
    share = (1.0 / (1.0 + tl.exp(-tl.load(gate + row).to(tl.float32)))).to(own.dtype).to(tl.float32)
    added = (share * other).to(own.dtype).to(tl.float32)
    tl.store(out + row * width + at, (own.to(tl.float32) + added).to(own.dtype), mask=inside)


@triton.jit
def gated(gate, up, out, width, gate_stride, up_stride, block: tl.constexpr):
    """Row r of `out` [N, width]: silu(gate) rounded to the dtype, times up."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    g = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0)
    u = tl.load(up + row * up_stride + at, mask=inside, other=0.0)
    wide = g.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(g.dtype)
    tl.store(out + row * width + at, (activated.to(tl.float32) * u.to(tl.float32)).to(g.dtype), mask=inside)


@triton.jit
def weighted_sum(rows, places, weights, out, width, top_k: tl.constexpr, block: tl.constexpr):
    """Token t of `out` [T, width]: the sum of its `top_k` rows, each times its weight and rounded to the dtype."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    total = tl.zeros([block], tl.float32)
    for k in range(top_k):
        place = tl.load(places + token * top_k + k).to(tl.int64)
        weight = tl.load(weights + token * top_k + k)
        row = tl.load(rows + place * width + at, mask=inside, other=0.0)
        total += (row.to(tl.float32) * weight.to(tl.float32)).to(row.dtype).to(tl.float32)
    tl.store(out + token * width + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _fp4_times(code, scale):
    """FP4 values by their codes times a scale that was multiplied by 2**14, in BF16.

    An FP4 value's bits are those of an FP16 value that is 2**14 times smaller.
    """
    bits = ((code & 7) << 9) | ((code & 8) << 12)
    return (bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * scale).to(tl.bfloat16)


@triton.jit
def products(
    x,
    weight,
    scales,
    wholes,
    ends,
    out,
    height,
    first_row,
    expert_rows,
    outputs: tl.constexpr,
    inputs: tl.constexpr,
    is_packed: tl.constexpr,
    divides: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """Rows `x` [N, inputs], sorted by expert, times the weights of their experts: `out` [N, outputs].

    Weights are [E, expert_rows, inputs], of which `outputs` rows from `first_row` on are meant. Each expert's tile of
    weights is read once for `block_m` of its rows. Packed weights are two FP4 values a byte under an FP8 scale per 16
    values and a float32 scale per `height` rows of outputs.
    """
    e = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * block_n + tl.arange(0, block_n)
    begin = tl.load(ends + e - 1, mask=e > 0, other=0)
    end = tl.load(ends + e)
    row = e * expert_rows + first_row + n
    if is_packed:
        whole = tl.load(wholes + row // height)
    for first in range(begin, end, block_m):
        m = first + tl.arange(0, block_m)
        live = (m < end)[:, None]
        total = tl.zeros([block_m, block_n], tl.float32)
        for k0 in range(0, inputs, block_k):
            if is_packed:
                half = tl.arange(0, block_k // 2)
                group = tl.arange(0, block_k // 16)
                byte = tl.load(weight + row[:, None] * (inputs // 2) + (k0 // 2 + half)[None, :]).to(tl.int32)
                local = tl.load(scales + row[:, None] * (inputs // 16) + (k0 // 16 + group)[None, :]).to(tl.float32)
                whole_spread = whole[:, None] + tl.zeros_like(local)
                scale = tl.div_rn(local, whole_spread) if divides else local * whole_spread
                spread = tl.broadcast_to((scale * 16384.0)[:, :, None], [block_n, block_k // 16, 8])
                spread = tl.reshape(spread, [block_n, block_k // 2])
                even = tl.load(x + m.to(tl.int64)[:, None] * inputs + (k0 + 2 * half)[None, :], mask=live, other=0.0)
                odd = tl.load(x + m.to(tl.int64)[:, None] * inputs + (k0 + 2 * half + 1)[None, :], mask=live, other=0.0)
                total = tl.dot(even, tl.trans(_fp4_times(byte & 15, spread)), total)
                total = tl.dot(odd, tl.trans(_fp4_times(byte >> 4, spread)), total)
            else:
                k = k0 + tl.arange(0, block_k)
                tile = tl.load(weight + row[:, None] * inputs + k[None, :])
                own = tl.load(x + m.to(tl.int64)[:, None] * inputs + k[None, :], mask=live, other=0.0)
                total = tl.dot(own, tl.trans(tile), total)
        place = out + m.to(tl.int64)[:, None] * outputs + n[None, :]
        tl.store(place, total.to(out.dtype.element_ty), mask=live)
