# mypy: ignore-errors
"""Triton kernels behind `fused_layers`: norms, the short convolution, and a decoding step of a linear layer."""

import triton
import triton.language as tl


@triton.jit
def rms_norm(x, weight, out, x_stride, width, eps, block: tl.constexpr):
    """Row r of `out` [N, width]: x / rms(x) times (1 + weight), in float32, rounded once."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    own = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    tl.store(out + row * width + at, (normed * (1.0 + own)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_rms_norm(x, gate, weight, out, rows, eps, width: tl.constexpr, block: tl.constexpr):
    """`block` rows of `out` [N, width]: x / rms(x), rounded, times weight, rounded, times silu(gate)."""
    row = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    at = row[:, None] * width + tl.arange(0, width)[None, :]
    inside = (row < rows)[:, None]
    stored = tl.load(x + at, mask=inside, other=0.0)
    values = stored.to(tl.float32)
    normed = (values * tl.rsqrt(tl.sum(values * values, axis=1) / width + eps)[:, None]).to(stored.dtype)
    own = tl.load(weight + tl.arange(0, width))[None, :]
    weighed = (normed.to(tl.float32) * own.to(tl.float32)).to(stored.dtype).to(tl.float32)
    g = tl.load(gate + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (weighed * (g / (1.0 + tl.exp(-g)))).to(out.dtype.element_ty), mask=inside)


@triton.jit
def convolved(
    x,
    weight,
    out,
    length,
    channels,
    x_row,
    x_channel,
    x_time,
    taps: tl.constexpr,
    times: tl.constexpr,
    block: tl.constexpr,
):
    """silu of the causal convolution over time of `x` [B, channels, length] by strides: `out` [B, length, channels]."""
    c = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.program_id(2).to(tl.int64)
    known = c < channels
    first = tl.program_id(1) * times
    for t in range(first, tl.minimum(first + times, length)):
        total = tl.zeros([block], tl.float32)
        for tap in tl.static_range(taps):
            then = t - (taps - 1) + tap
            value = tl.load(
                x + row * x_row + c.to(tl.int64) * x_channel + then * x_time, mask=known & (then >= 0), other=0.0
            )
            total += value.to(tl.float32) * tl.load(weight + c * taps + tap, mask=known, other=0.0).to(tl.float32)
        rounded = total.to(out.dtype.element_ty).to(tl.float32)
        silu = (rounded / (1.0 + tl.exp(-rounded))).to(out.dtype.element_ty)
        tl.store(out + (row * length + t) * channels + c, silu, mask=known)


@triton.jit
def convolved_step(x, state, weight, out, channels, taps: tl.constexpr, block: tl.constexpr):
    """silu of one token `x` [B, channels] after `state` [B, channels, taps], which becomes the next one."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * block + tl.arange(0, block)
    known = c < channels
    new = tl.load(x + row * channels + c, mask=known, other=0.0)
    own = state + (row * channels + c) * taps
    total = new.to(tl.float32) * tl.load(weight + c * taps + taps - 1, mask=known, other=0.0).to(tl.float32)
    for tap in tl.static_range(taps - 1):
        value = tl.load(own + tap + 1, mask=known, other=0.0)
        total += value.to(tl.float32) * tl.load(weight + c * taps + tap, mask=known, other=0.0).to(tl.float32)
        tl.store(own + tap, value, mask=known)
    tl.store(own + taps - 1, new, mask=known)
    rounded = total.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * channels + c, (rounded / (1.0 + tl.exp(-rounded))).to(out.dtype.element_ty), mask=known)


@triton.jit
def delta_step(
    mixed,
    a,
    b,
    a_log,
    dt_bias,
    state,
    output,
    channels,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    keys: tl.constexpr,
    values: tl.constexpr,
    block: tl.constexpr,
):
    """For each row and value head: the state [keys, values] after the token, and its output [values].

    `mixed` [B, channels] holds the queries and keys of `key_heads` heads and the values of `heads`; `a` and `b`
    [B, heads] give g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b). As `delta.delta_step` otherwise.
    """
    at = tl.program_id(0).to(tl.int64)
    row, head = at // heads, at % heads
    i = tl.arange(0, keys)
    j = tl.program_id(1) * block + tl.arange(0, block)
    of_key = row * channels + (head // (heads // key_heads)) * keys + i
    q = tl.load(mixed + of_key).to(tl.float32)
    k = tl.load(mixed + of_key + key_heads * keys).to(tl.float32)
    q = q * (tl.rsqrt(tl.sum(q * q, axis=0) + 1e-6) / tl.sqrt(1.0 * keys))
    k = k * tl.rsqrt(tl.sum(k * k, axis=0) + 1e-6)
    raised = tl.load(a + at).to(tl.float32) + tl.load(dt_bias + head).to(tl.float32)
    softplus = tl.where(raised > 20.0, raised, tl.log(1.0 + tl.exp(raised)))
    decay = tl.exp(-tl.exp(tl.load(a_log + head).to(tl.float32)) * softplus)
    stored = tl.load(b + at)
    beta = (1.0 / (1.0 + tl.exp(-stored.to(tl.float32)))).to(stored.dtype).to(tl.float32)
    place = state + (at * keys + i)[:, None] * values + j[None, :]
    s = tl.load(place) * decay
    v = tl.load(mixed + row * channels + 2 * key_heads * keys + head * values + j).to(tl.float32)
    correction = (v - tl.sum(s * k[:, None], axis=0)) * beta
    s += k[:, None] * correction[None, :]
    tl.store(place, s)
    tl.store(output + at * values + j, tl.sum(s * q[:, None], axis=0).to(output.dtype.element_ty))
