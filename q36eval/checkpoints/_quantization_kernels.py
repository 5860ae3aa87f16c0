# mypy: ignore-errors
"""Triton kernels behind `emulation` and `packed`: a row's quantization in one pass, and FP4 weights decoded in one.

Each gives the bits of the plain arithmetic on a CPU: products and sums in float32, divisions rounded to nearest, one
rounding to the output's dtype at the end.
"""

import triton
import triton.language as tl


@triton.jit
def _fp4_rounded(values):
    """Nearest E2M1 value, ties to even, of float32 values within ±6: as `emulation.round_to_fp4`."""
    power = (values.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    # 0.75 * 2**23 spacings, of which one is half the power of two below the value
    offset = tl.maximum(power, 1.0) * 6291456.0
    return (values + offset) - offset


@triton.jit
def quantize_rows(
    x,
    source,
    expert,
    scale,
    active,
    out,
    width,
    x_stride,
    kind: tl.constexpr,
    group: tl.constexpr,
    block: tl.constexpr,
    gathers: tl.constexpr,
    by_expert: tl.constexpr,
    all_active: tl.constexpr,
):
    """Row r of `out` [N, width] from row `source[r]` of `x` (r itself without `gathers`), `block` groups a program."""
    row = tl.program_id(0).to(tl.int64)
    from_row = tl.load(source + row).to(tl.int64) if gathers else row
    of = tl.load(expert + row).to(tl.int64) if by_expert else 0
    at = (tl.program_id(1) * block + tl.arange(0, block))[:, None] * group + tl.arange(0, group)[None, :]
    inside = at < width
    stored = tl.load(x + from_row * x_stride + at, mask=inside, other=0.0)
    values = stored.to(tl.float32)
    if kind == "fp8-static":
        own = tl.load(scale + of)
        levels = tl.clamp(tl.div_rn(values, own + tl.zeros_like(values)), -448.0, 448.0)
        quantized = levels.to(tl.float8e4nv).to(tl.float32) * own
    elif kind == "nvfp4":
        whole = tl.load(scale + of)
        largest = tl.max(tl.abs(values), axis=1)
        local = tl.minimum(whole * tl.div_rn(largest, tl.full([block], 6.0, tl.float32)), 448.0)
        local = local.to(tl.float8e4nv).to(tl.float32)
        local = tl.where(local == 0.0, 0.125, local)
        own = tl.div_rn(local, whole + tl.zeros_like(local))[:, None]
        levels = tl.clamp(tl.div_rn(values, own + tl.zeros_like(values)), -6.0, 6.0)
        quantized = _fp4_rounded(levels) * own
    else:
        largest = tl.max(tl.abs(values), axis=1)
        top: tl.constexpr = 448.0 if kind == "fp8" else 127.5
        own = tl.div_rn(largest, tl.full([block], top, tl.float32))
        own = tl.where(own == 0.0, 1.1920928955078125e-07, own)[:, None]
        levels = tl.div_rn(values, own + tl.zeros_like(values))
        if kind == "fp8":
            quantized = tl.clamp(levels, -448.0, 448.0).to(tl.float8e4nv).to(tl.float32) * own
        else:
            # adding 1.5 * 2**23 leaves no bits below one: the addition rounds, ties to even
            quantized = ((tl.clamp(levels, -128.0, 127.0) + 12582912.0) - 12582912.0) * own
    kept = quantized.to(stored.dtype)
    if not all_active:
        kept = tl.where(tl.load(active + of), kept, stored)
    tl.store(out + row * width + at, kept, mask=inside)


@triton.jit
def decode_fp4_rows(
    values,
    scales,
    wholes,
    out,
    count,
    width: tl.constexpr,
    height: tl.constexpr,
    divides: tl.constexpr,
    rounds: tl.constexpr,
    block: tl.constexpr,
):
    """`out` [rows, width] from two FP4 values a byte, an FP8 scale per 16 values, a float32 scale per `height` rows."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    row = at // width
    byte = tl.load(values + (at >> 1), mask=inside, other=0).to(tl.int32)
    code = tl.where((at & 1) == 0, byte & 15, byte >> 4)
    exponent, fraction = (code >> 1) & 3, (code & 1).to(tl.float32)
    normal = (1.0 + 0.5 * fraction) * ((1 << exponent).to(tl.float32) * 0.5)
    magnitude = tl.where(exponent == 0, 0.5 * fraction, normal)
    signed = magnitude * tl.where(code >= 8, -1.0, 1.0)  # a zero keeps its sign too
    local = tl.load(scales + (at >> 4), mask=inside, other=0.0).to(tl.float32)
    whole = tl.load(wholes + row // height, mask=inside, other=1.0)
    scale = tl.div_rn(local, whole) if divides else local * whole
    decoded = signed * scale
    if rounds:
        decoded = decoded.to(tl.bfloat16)
    tl.store(out + at, decoded.to(out.dtype.element_ty), mask=inside)
