"""What is packed by naive code, value by value, decodes to the same values, whole and in slabs of rows.

Shapes, group sizes, zero-points and scales are drawn; scales reach from the smallest normal numbers to where products
overflow nearly. And what decoders refuse, and the scales of inputs.
"""

from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from q36eval.checkpoints.formats import FORMATS, ROWS_MULTIPLE
from q36eval.checkpoints.inspection.stored_schemes import grid_of
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.profiles import sized
from tests.raising import raises

FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.sampled_from([1, 8, 128, 136, 264])
ROWS_OF_EIGHT = st.sampled_from([8, 128, 136, 264])
GROUPS, BITS = st.integers(1, 3), st.sampled_from([2, 3, 4, 8])
GROUP_SIZES, DTYPES = st.sampled_from([32, 96, -1]), st.sampled_from([torch.bfloat16, torch.float16])
small = settings(max_examples=sized(8, 20), deadline=None)


def weights_scheme(layout: str, **weights: Any) -> Scheme:
    args = QuantizationArgs(**weights)
    return Scheme(layout, compressed=QuantizationScheme(targets=["Linear"], weights=args, format=layout))


def scales(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Powers of two across the dtype's range times random mantissas."""
    rng = np.random.default_rng(seed)
    low, high = (-14, 7) if dtype == torch.float16 else (-100, 100)
    return torch.from_numpy(np.exp2(rng.integers(low, high, shape)) * rng.uniform(1, 2, shape)).to(dtype)


def integers(low: int, high: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).integers(low, high, shape, endpoint=True)


def bit_stream(row: np.ndarray, bits: int) -> list[int]:
    """Int32 words of a row of unsigned integers, lowest bits first, one value after another."""
    stream = sum(int(value) << (bits * at) for at, value in enumerate(row))
    words = -(-len(row) * bits // 32)
    unsigned = [(stream >> (32 * at)) & 0xFFFFFFFF for at in range(words)]
    return [word - 2**32 if word >= 2**31 else word for word in unsigned]


def packed_rows(values: np.ndarray, bits: int) -> Tensor:
    """Each row as words: [n, ceil(m · bits / 32)]."""
    return torch.tensor([bit_stream(row, bits) for row in values], dtype=torch.int32)


def assert_decodes(parts: dict[str, Tensor], scheme: Scheme, expected: Tensor) -> None:
    """Whole and slab by slab, bit for bit."""
    layout = FORMATS[scheme.format]
    assert layout.shape(parts, scheme) == tuple(expected.shape)
    whole = layout.decode(parts, scheme)
    assert torch.equal(whole, expected.to(whole.dtype))
    starts = range(0, len(expected), ROWS_MULTIPLE)
    slabs = [layout.rows(parts, scheme, at, min(at + ROWS_MULTIPLE, len(expected))) for at in starts]
    assert torch.equal(torch.cat([layout.decode(slab, scheme) for slab in slabs]), whole)
    # the library no longer follows an order of columns, and decodes microscaled values to BF16
    if scheme.compressed is not None and not scheme.format.startswith("mx") and "weight_g_idx" not in parts:
        from compressed_tensors.compressors import BaseCompressor

        compressor = BaseCompressor.get_value_from_registry(scheme.format)
        theirs = compressor.decompress(dict(parts), scheme.compressed)["weight"]
        assert theirs.dtype == whole.dtype
        assert torch.equal(as_bits(theirs), as_bits(whole))


def as_bits(tensor: Tensor) -> Tensor:
    """Told apart where numbers are not: zeros by their sign."""
    return tensor.contiguous().view(torch.uint8)


@small
@given(ROWS, GROUPS, st.sampled_from([16, 32, 64, None]), BITS, st.booleans(), st.booleans(), DTYPES, SEEDS)
def test_packed_integers(
    rows: int,
    groups: int,
    group_size: int | None,
    bits: int,
    symmetric: bool,
    ordered: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    columns, groups = groups * (group_size or 48), groups if group_size else 1
    half = 2 ** (bits - 1)
    strategy = {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    scheme = weights_scheme("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, **strategy)
    q = integers(-half, half - 1, (rows, columns), seed)
    zero = integers(-half, half - 1, (rows, groups), seed + 7) if not symmetric else np.zeros((rows, groups), int)
    scale = scales((rows, groups), dtype, seed)
    order = integers(0, groups - 1, (columns,), seed) if ordered else np.arange(columns) // (group_size or columns)
    parts = {
        "weight_packed": packed_rows(q + half, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:  # packed along the rows
        parts["weight_zero_point"] = packed_rows((zero + half).T, bits).T.contiguous()
    if ordered:
        parts["weight_g_idx"] = torch.from_numpy(order).int()
    # The product of two numbers of 11 bits is exact in float64, and rounded once.
    expected = torch.from_numpy(q - zero[:, order]).double() * scale[:, torch.from_numpy(order)].double()
    assert_decodes(parts, scheme, expected.to(dtype))


@small
@given(ROWS, BITS, st.booleans(), st.sampled_from([(1,), ()]), SEEDS)
def test_packed_integers_under_one_scale(
    rows: int, bits: int, symmetric: bool, shape: tuple[int, ...], seed: int
) -> None:
    """The zero-point is one int8 that is not packed, as the library writes it."""
    half = 2 ** (bits - 1)
    scheme = weights_scheme("pack-quantized", num_bits=bits, type="int", symmetric=symmetric, strategy="tensor")
    q, scale = integers(-half, half - 1, (rows, 48), seed), scales((1,), torch.bfloat16, seed).reshape(shape)
    zero = torch.tensor(int(integers(-half, half - 1, (1,), seed + 7)[0]), dtype=torch.int8).reshape(shape)
    parts = {
        "weight_packed": packed_rows(q + half, bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([rows, 48]),
    }
    if not symmetric:
        parts["weight_zero_point"] = zero
    expected = torch.from_numpy(q - int(zero) * (not symmetric)).double() * scale.double()
    assert_decodes(parts, scheme, expected.to(torch.bfloat16))


@small
@given(ROWS_OF_EIGHT, GROUPS, GROUP_SIZES, BITS, st.sampled_from([0, 1]), st.booleans(), SEEDS)
def test_gptq(rows: int, groups: int, group_size: int, bits: int, offset: int, ordered: bool, seed: int) -> None:
    if bits == 3:
        rows = 32 * -(-rows // 32)  # whole words of packed zero-points, as GPTQ's kernels need
    columns, groups = groups * (group_size if group_size > 0 else 64), groups if group_size > 0 else 1
    found = {"bits": bits, "group_size": group_size, "desc_act": ordered, "zero_offset": offset}
    scheme = Scheme("gptq", settings=tuple(found.items()))
    q, zero = integers(0, 2**bits - 1, (rows, columns), seed), integers(0, 2**bits - 1, (rows, groups), seed + 7)
    scale = scales((rows, groups), torch.float16, seed)
    width = group_size if group_size > 0 else columns
    order = integers(0, groups - 1, (columns,), seed) if ordered else np.arange(columns) // width
    parts = {
        "qweight": packed_rows(q, bits).T.contiguous(),
        "qzeros": packed_rows(((zero - offset) % 2**bits).T, bits),
        "scales": scale.T.contiguous(),
    }
    if ordered:
        parts["g_idx"] = torch.from_numpy(order).int()
    expected = torch.from_numpy(q - zero[:, order]).double() * scale[:, torch.from_numpy(order)].double()
    assert_decodes(parts, scheme, expected.float())


@small
@given(ROWS_OF_EIGHT, GROUPS, GROUP_SIZES, SEEDS)
def test_awq(rows: int, groups: int, group_size: int, seed: int) -> None:
    """Element by element: eight outputs a word, from its lowest bits the 0th, 2nd, 4th, 6th, 1st, 3rd, 5th, 7th."""
    width = group_size if group_size > 0 else 64
    groups = groups if group_size > 0 else 1
    scheme = Scheme("awq", settings=(("bits", 4), ("group_size", group_size)))
    q, zero = integers(0, 15, (groups * width, rows), seed), integers(0, 15, (groups, rows), seed + 7)

    def packed(values: np.ndarray) -> Tensor:
        in_order = values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(values.shape)
        return packed_rows(in_order, 4)

    scale = scales((groups, rows), torch.float16, seed) * torch.from_numpy(integers(0, 1, (groups, rows), seed) * 2 - 1)
    parts = {"qweight": packed(q), "qzeros": packed(zero), "scales": scale.half()}
    expected = torch.from_numpy(q - zero.repeat(width, 0)).double() * parts["scales"].double().repeat_interleave(
        width, 0
    )
    assert_decodes(parts, scheme, expected.T.half())


@small
@given(ROWS, st.integers(1, 5), st.booleans(), SEEDS)
def test_nvfp4(rows: int, groups: int, modelopt: bool, seed: int) -> None:
    codes = integers(0, 15, (rows, groups * 16), seed)
    packed = torch.from_numpy(codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)
    local = torch.from_numpy(np.exp2(np.random.default_rng(seed).uniform(-9, 8.8, (rows, groups))))
    local = local.to(torch.float8_e4m3fn)
    second = scales((1,), torch.float32, seed)
    if modelopt:
        scheme, factor = Scheme("modelopt-nvfp4"), local.float() * second
        parts = {"weight": packed, "weight_scale": local, "weight_scale_2": second}
    else:
        arguments = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
        scheme, factor = weights_scheme("nvfp4-pack-quantized", **arguments), local.float() / second
        parts = {"weight_packed": packed, "weight_scale": local, "weight_global_scale": second}
    expected = FP4[torch.from_numpy(codes)] * factor.repeat_interleave(16, dim=1)
    whole = FORMATS[scheme.format].decode(parts, scheme)
    assert_decodes(parts, scheme, expected.to(whole.dtype))


@small
@given(ROWS, st.integers(1, 4), st.booleans(), st.booleans(), SEEDS)
def test_microscaling(rows: int, groups: int, is_fp4: bool, modelopt: bool, seed: int) -> None:
    """Bit for bit as the library decodes the same bytes, where it does not overflow."""
    exponents = integers(0, 245, (rows, groups), seed + 3)
    codes = integers(0, 15, (rows, groups * 32), seed)
    kind = "mxfp4" if is_fp4 else "mxfp8"
    values = FP4[torch.from_numpy(codes)] if is_fp4 else fp8(rows, groups * 32, seed)
    stored = torch.from_numpy(codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8) if is_fp4 else values
    arguments = {"num_bits": 4 if is_fp4 else 8, "type": "float", "strategy": "group", "group_size": 32}
    layout = "mxfp4-pack-quantized" if is_fp4 else "mxfp8-quantized"
    scheme = weights_scheme(layout, scale_dtype=torch.uint8, **arguments)
    part = "weight_packed" if is_fp4 else "weight"
    parts = {part: stored, "weight_scale": torch.from_numpy(exponents).to(torch.uint8)}
    powers = np.repeat(np.ldexp(1.0, exponents - 127), 32, axis=1)
    expected = (values.double() * torch.from_numpy(powers)).float()
    if modelopt:
        assert_decodes({"weight": stored, "weight_scale": parts["weight_scale"]}, Scheme(f"modelopt-{kind}"), expected)
        return
    assert_decodes(parts, scheme, expected)
    from compressed_tensors.compressors import BaseCompressor

    theirs = BaseCompressor.get_value_from_registry(layout).decompress(dict(parts), scheme.compressed)["weight"]
    assert torch.equal(FORMATS[layout].decode(parts, scheme).to(theirs.dtype), theirs)


def fp8(rows: int, columns: int, seed: int) -> Tensor:
    codes = torch.from_numpy(integers(0, 255, (rows, columns), seed)).to(torch.uint8)
    codes[codes & 127 == 127] = 0  # no NaN
    return codes.view(torch.float8_e4m3fn)


@pytest.mark.parametrize("producer", ["compressed-tensors", "modelopt", "transformers"])
@small
@given(ROWS, st.sampled_from([16, 128, 200]), st.sampled_from(["tensor", "channel", "block"]), st.booleans(), SEEDS)
def test_fp8(producer: str, rows: int, columns: int, strategy: str, squeezed: bool, seed: int) -> None:
    """transformers has no scales by channel, and multiplies by what it calls the inverse scale; Model Optimizer may
    leave axes of size one out of its block scales."""
    if producer == "transformers" and strategy == "channel":
        strategy = "tensor"
    shape = {"tensor": (1,), "channel": (rows, 1), "block": (-(-rows // 128), -(-columns // 128))}[strategy]
    weight, name = fp8(rows, columns, seed), "weight_scale"
    stored = scale = scales(shape, torch.bfloat16 if producer == "compressed-tensors" else torch.float32, seed)
    if producer == "modelopt":
        parameters = {"tensor": (), "channel": (("per_channel", True),), "block": (("block", (128, 128)),)}
        scheme = Scheme("modelopt-fp8", settings=parameters[strategy])
        stored = scale.reshape(()) if strategy == "tensor" else scale.reshape(-1) if strategy == "channel" else scale
        if strategy == "block" and squeezed:  # as 0.47 writes `fp8_pb_wo`
            stored = scale.squeeze()
            assert grid_of(tuple(stored.shape), (rows, columns), (128, 128)) == shape
    elif producer == "transformers":
        scheme = Scheme("fp8", settings=(("block", (128, 128) if strategy == "block" else None), ("inputs", "dynamic")))
        name = "weight_scale_inv"
    else:
        block = {"block_structure": [128, 128]} if strategy == "block" else {}
        scheme = weights_scheme("float-quantized", num_bits=8, type="float", strategy=strategy, **block)
    grid = scale if strategy == "tensor" else scale.repeat_interleave(128, 0)[:rows] if strategy == "block" else scale
    grid = grid.repeat_interleave(128, 1)[:, :columns] if strategy == "block" else grid
    # FP8 has 4 bits and BF16 has 8: their product is exact in float32, and rounded once to the scale's dtype.
    assert_decodes({"weight": weight, name: stored}, scheme, (weight.float() * grid.float()).to(scale.dtype))


@small
@given(ROWS, st.sampled_from(["channel", "tensor", "group"]), st.booleans(), SEEDS)
def test_unpacked_int8(rows: int, strategy: str, symmetric: bool, seed: int) -> None:
    group = {"group_size": 32} if strategy == "group" else {}
    scheme = weights_scheme("int-quantized", num_bits=8, type="int", strategy=strategy, symmetric=symmetric, **group)
    shape = {"tensor": (1,), "channel": (rows, 1), "group": (rows, 2)}[strategy]
    q = torch.from_numpy(integers(-128, 127, (rows, 64), seed)).to(torch.int8)
    zero = torch.from_numpy(integers(-128, 127, shape, seed + 7)).to(torch.int8)
    parts = {"weight": q, "weight_scale": scales(shape, torch.bfloat16, seed)}
    if not symmetric:
        parts["weight_zero_point"] = zero
    width = 32 if strategy == "group" else 1
    scale = parts["weight_scale"].double().repeat_interleave(width, -1)
    shift = zero.double().repeat_interleave(width, -1) * (not symmetric)
    assert_decodes(parts, scheme, ((q.double() - shift) * scale).bfloat16())


@pytest.mark.parametrize("rows", [128, 300])
def test_plain_weights_are_taken_in_slabs_too(rows: int) -> None:
    weight = torch.randn(rows, 8).bfloat16()
    assert_decodes({"weight": weight}, Scheme("plain"), weight)


def test_a_producer_divides_by_the_scale_of_inputs_and_another_multiplies() -> None:
    compressed = Scheme("nvfp4-pack-quantized", compressed=preset_name_to_scheme("NVFP4", ["Linear"]))
    optimizer = Scheme("modelopt-nvfp4", settings=(("inputs", "local"),))
    for scheme, part, stored in ((compressed, "input_global_scale", 4.0), (optimizer, "input_scale", 0.25)):
        inputs = FORMATS[scheme.format].activations({part: torch.tensor([stored])}, scheme)
        assert (inputs.kind, inputs.global_scale) == ("nvfp4", 4.0)


def test_integers_without_a_scale_are_refused() -> None:
    with raises(CorruptCheckpointError, "scale-missing", "int8"):
        FORMATS["plain"].decode({"weight": torch.zeros(2, 2, dtype=torch.int8)}, Scheme("plain"))


def test_blocks_that_begin_before_a_run_of_rows_are_refused() -> None:
    """Rows 128 and on begin inside the second block of 96: its scale would be taken for another row of blocks."""
    scheme = Scheme("fp8", settings=(("block", (96, 128)),))
    parts = {"weight": torch.zeros(384, 128).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(4, 1)}
    with raises(UsageError, "format-unsupported", "96 rows"):
        FORMATS["fp8"].rows(parts, scheme, 128, 256)
