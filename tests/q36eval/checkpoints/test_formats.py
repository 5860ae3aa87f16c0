"""Every decoder equals, bit for bit, a slow decoder written element by element, on what a producer's library stores."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.formats import FORMATS, modelopt
from q36eval.checkpoints.inspection.stored_schemes import grid_of
from q36eval.checkpoints.scheme import Scheme
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ROWS, COLUMNS = 24, 64
MODELOPT_NVFP4 = Scheme("modelopt-nvfp4", settings=(("inputs", "local"),))


def weight(rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
    generator = torch.Generator().manual_seed(rows * columns)
    return (torch.randn(rows, columns, generator=generator) * 0.04).bfloat16()


def fill(rows: int, columns: int, value: Callable[[int, int], float]) -> Tensor:
    """[rows, columns] in BF16, each element computed on its own and rounded once."""
    out = torch.empty(rows, columns, dtype=torch.float32)
    for i, j in itertools.product(range(rows), range(columns)):
        out[i, j] = float(value(i, j))
    return out.bfloat16()


def fp4_value(packed: Tensor, i: int, j: int) -> float:
    nibble = (int(packed[i, j // 2]) >> (4 * (j % 2))) & 15
    return -FP4[nibble & 7] if nibble & 8 else FP4[nibble]


def signed(packed: Tensor, i: int, j: int, bits: int) -> int:
    """Element j of row i of a dense little-endian bit stream of int32 words, offset by half the range."""
    stream = b"".join((int(word) & 0xFFFFFFFF).to_bytes(4, "little") for word in packed[i])
    return ((int.from_bytes(stream, "little") >> (bits * j)) & (2**bits - 1)) - 2 ** (bits - 1)


def compressed(preset: str, **changes: object) -> Scheme:
    from compressed_tensors.quantization import preset_name_to_scheme

    scheme = preset_name_to_scheme(preset, ["Linear"])
    if changes:
        scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | changes))
    layouts = {"NVFP4": "nvfp4-pack-quantized", "FP8_BLOCK": "float-quantized"}
    return Scheme(layouts.get(preset, "pack-quantized"), compressed=scheme)


def compress(w: Tensor, scheme: Scheme, scale: Tensor, **extra: Tensor) -> dict[str, Tensor]:
    from compressed_tensors.compressors import BaseCompressor

    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    parts: dict[str, Tensor] = compressor.compress({"weight": w, "weight_scale": scale, **extra}, scheme.compressed)
    return parts


def decode(parts: dict[str, Tensor], scheme: Scheme) -> Tensor:
    layout = FORMATS[scheme.format]
    assert layout.required <= set(parts) <= layout.required | layout.optional
    return layout.decode(parts, scheme).bfloat16()


def test_nvfp4_of_compressed_tensors() -> None:
    w, scheme = weight(), compressed("NVFP4")
    global_scale = torch.tensor([448 * 6 / float(w.abs().max())])
    local = (w.float().reshape(ROWS, -1, 16).abs().amax(-1) / 6 * global_scale).to(torch.float8_e4m3fn).float()
    parts = compress(w, scheme, local, weight_global_scale=global_scale)
    parts["input_global_scale"] = torch.tensor([3.0])
    stored = parts["weight_scale"].float().numpy()

    def value(i: int, j: int) -> float:
        scale = np.float32(stored[i, j // 16]) / np.float32(global_scale[0])
        return np.float32(fp4_value(parts["weight_packed"], i, j)) * scale

    decoded = decode(parts, scheme)
    assert torch.equal(decoded, fill(ROWS, COLUMNS, value))
    assert (decoded - w).norm() / w.norm() < 0.13  # the right tensor, not a consistent misreading of it
    scheme_found = FORMATS[scheme.format].activations(parts, scheme)
    assert scheme_found is not None
    assert (scheme_found.kind, scheme_found.global_scale) == ("nvfp4", 3.0)


def test_nvfp4_of_model_optimizer() -> None:
    scheme, generator = MODELOPT_NVFP4, torch.Generator().manual_seed(1)
    packed = torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8, generator=generator)
    local = (torch.rand(ROWS, COLUMNS // 16, generator=generator) * 400).to(torch.float8_e4m3fn)
    parts = {"weight": packed, "weight_scale": local, "weight_scale_2": torch.tensor(0.00031)}
    stored, second = local.float().numpy(), np.float32(parts["weight_scale_2"])

    def value(i: int, j: int) -> float:
        return np.float32(fp4_value(packed, i, j)) * (np.float32(stored[i, j // 16]) * second)

    assert torch.equal(decode(parts, scheme), fill(ROWS, COLUMNS, value))
    found = FORMATS[scheme.format].activations(parts | {"input_scale": torch.tensor(0.25)}, scheme)
    assert found is not None
    assert found.global_scale == 4.0


@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (200, 136)], ids=["divides", "does not divide"])
def test_fp8_blocks(rows: int, columns: int) -> None:
    w, scheme = weight(rows, columns), compressed("FP8_BLOCK")
    scale = torch.tensor([[float(w[i : i + 128, j : j + 128].abs().max()) / 448 for j in range(0, columns, 128)]
                          for i in range(0, rows, 128)]).bfloat16()  # fmt: skip
    parts = compress(w, scheme, scale)
    stored, scales = parts["weight"].float(), parts["weight_scale"].float()
    naive = fill(rows, columns, lambda i, j: float(stored[i, j]) * float(scales[i // 128, j // 128]))
    decoded = decode(parts, scheme)
    assert torch.equal(decoded, naive)
    assert (decoded - w).norm() / w.norm() < 0.04


@pytest.mark.parametrize(
    ("preset", "bits", "group"),
    [("W4A16", 4, 32), ("W8A16", 8, None), ("W8A16", 8, 32), ("W4A16", 2, 32), ("W4A16", 3, 32)],
)
def test_packed_integers(preset: str, bits: int, group: int | None) -> None:
    strategy = "channel" if group is None else "group"
    scheme = compressed(preset, num_bits=bits, group_size=group, strategy=strategy)
    w, width = weight(), group or COLUMNS
    scale = (w.float().reshape(ROWS, -1, width).abs().amax(-1) / (2 ** (bits - 1) - 0.5)).bfloat16()
    parts = compress(w, scheme, scale)
    packed = parts["weight_packed"]
    naive = fill(ROWS, COLUMNS, lambda i, j: signed(packed, i, j, bits) * float(scale[i, j // width]))
    assert torch.equal(decode(parts, scheme), naive)


def test_packed_integers_with_zero_points_and_column_order() -> None:
    scheme = compressed("W4A16", num_bits=4, group_size=32, symmetric=False)
    w = weight()
    grouped = w.float().reshape(ROWS, -1, 32)
    scale = ((grouped.amax(-1) - grouped.amin(-1)) / 15).bfloat16()
    zero = (-8 - grouped.amin(-1) / scale.float()).round().clamp(-8, 7).to(torch.int8)
    parts = compress(w, scheme, scale, weight_zero_point=zero)
    order = torch.randint(0, 2, (COLUMNS,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    parts["weight_g_idx"] = order
    packed = parts["weight_packed"]

    def value(i: int, j: int) -> float:
        group = int(order[j])
        return (signed(packed, i, j, 4) - int(zero[i, group])) * float(scale[i, group])

    assert torch.equal(decode(parts, scheme), fill(ROWS, COLUMNS, value))


@pytest.mark.parametrize("zero_offset", [1, 0], ids=["version 1", "version 2"])
def test_gptq(zero_offset: int) -> None:
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(-(2**31), 2**31, (COLUMNS // 8, ROWS), dtype=torch.int64, generator=generator).int()
    zeros = torch.randint(-(2**31), 2**31, (2, ROWS // 8), dtype=torch.int64, generator=generator).int()
    scales = (torch.rand(2, ROWS, generator=generator) * 0.01).half()
    order = torch.randint(0, 2, (COLUMNS,), generator=generator, dtype=torch.int32)
    parts = {"qweight": words, "qzeros": zeros, "scales": scales, "g_idx": order}
    scheme = Scheme("gptq", settings=(("bits", 4), ("group_size", 32), ("zero_offset", zero_offset)))

    def value(i: int, j: int) -> float:
        group = int(order[j])
        q = (int(words[j // 8, i]) >> (4 * (j % 8))) & 15
        zero = (((int(zeros[group, i // 8]) >> (4 * (i % 8))) & 15) + zero_offset) % 16
        return float(np.float32(q - zero) * np.float32(scales[group, i]))

    assert torch.equal(decode(parts, scheme), fill(ROWS, COLUMNS, value))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_plain_weights_are_taken_as_they_are(dtype: torch.dtype) -> None:
    stored = weight().to(dtype)
    assert torch.equal(FORMATS["plain"].decode({"weight": stored}, Scheme("plain")), stored)


def test_integers_without_a_scale_are_refused() -> None:
    with raises(CorruptCheckpointError, "scale-missing", "int8"):
        FORMATS["plain"].decode({"weight": torch.zeros(2, 2, dtype=torch.int8)}, Scheme("plain"))


def test_scales_of_another_shape_are_refused_rather_than_broadcast() -> None:
    w, scheme = weight(128, 128), compressed("FP8_BLOCK")
    parts = compress(w, scheme, torch.ones(1, 1).bfloat16()) | {"weight_scale": torch.ones(1, 2).bfloat16()}
    with raises(CorruptCheckpointError, "tensor-shape", "weight_scale"):
        decode(parts, scheme)


def test_blocks_that_begin_before_a_run_of_rows_are_refused() -> None:
    """Rows 128 and on begin inside the second block of 96: its scale would be taken for another row of blocks."""
    scheme = Scheme("fp8", settings=(("block", (96, 128)),))
    parts = {"weight": torch.zeros(384, 128).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(4, 1)}
    with raises(UsageError, "format-unsupported", "96 rows"):
        FORMATS["fp8"].rows(parts, scheme, 128, 256)


@pytest.mark.parametrize(
    ("shape", "stored"), [((32, 300), (3,)), ((300, 32), (3,)), ((32, 32), ()), ((300, 300), (3, 3))]
)
def test_model_optimizer_leaves_axes_of_size_one_out_of_its_block_scales(
    shape: tuple[int, int], stored: tuple[int, ...]
) -> None:
    """As 0.47 writes `fp8_pb_wo`, whose scales it squeezes; every row cut out decodes to the same."""
    scheme = Scheme("modelopt-fp8", settings=(("block", (128, 128)),))
    whole = tuple(-(-size // 128) for size in shape)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(whole, generator=generator) + 0.5
    expected = weight.float() * scale.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
    parts = {"weight": weight, "weight_scale": scale.reshape(stored)}
    assert torch.equal(modelopt.decode_fp8(parts, scheme), expected)
    for start in range(0, shape[0], 128):
        rows = modelopt.fp8_rows(parts, scheme, start, min(start + 128, shape[0]))
        assert torch.equal(modelopt.decode_fp8(rows, scheme), expected[start : start + 128])
    assert grid_of(stored, shape, (128, 128)) == whole
