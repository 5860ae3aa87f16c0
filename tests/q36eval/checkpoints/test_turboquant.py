"""TurboQuant's round trips against numbers worked by hand, a naive loop, and what theory says they cost."""

import itertools
import math
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.kv_cache import ROUND_TRIPS, scales_matter
from q36eval.checkpoints.turboquant import PRESETS, centroids, hadamard, round_trip_keys, round_trip_values
from q36eval.errors import UsageError
from tests.raising import raises

from .test_golden import GOLDEN
from .test_kv_cache import IDS, stored_by

# Max, Quantizing for minimum distortion (1960), table I: positive outputs for a normal of variance 1.
MAX_1960 = {
    3: (0.2451, 0.7560, 1.344, 2.152),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
}
LEAST_ERROR = {3: 0.03454, 4: 0.009501}
"""Mean squared error of the best quantizer of a normal of variance 1 with 8 and with 16 values, as in that table."""


@pytest.mark.parametrize("bits", [3, 4])
def test_centroids_are_those_of_a_normal(bits: int) -> None:
    scaled = centroids(256, bits).double() * 16
    assert torch.equal(scaled, -scaled.flip(0)) or torch.allclose(scaled, -scaled.flip(0), atol=1e-6)
    published = torch.tensor(MAX_1960[bits], dtype=torch.float64)
    # The engine's search stops early and integrates by trapezoids: 2.2e-3 at most; the table has four digits.
    assert float((scaled[len(published) :] - published).abs().max()) < 2.5e-3


def test_the_rotation_worked_by_hand() -> None:
    # H(1) = 1, H(2n) = [[H, H], [H, -H]], over the root of the order: here 2.
    signs = torch.tensor([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    assert torch.equal(hadamard(4), signs / 2)
    whole = hadamard(256)
    assert torch.equal(whole, whole.T)
    assert torch.equal(whole @ whole, torch.eye(256))


def fp16(x: float) -> float:
    value: float = struct.unpack("<e", struct.pack("<e", x))[0]
    return value


def naive_key(x: list[float], bits: int) -> list[float]:
    """One key, by the definition, in Python's doubles."""
    size = len(x)
    signs = [[(-1) ** bin(row & column).count("1") / math.sqrt(size) for column in range(size)] for row in range(size)]
    norm = math.sqrt(sum(value * value for value in x))
    rotated = [sum(a * value / (norm + 1e-8) for a, value in zip(row, x, strict=True)) for row in signs]
    table = centroids(size, bits).tolist()
    nearest = [min(table, key=lambda point, y=y: (abs(point - y), -point)) for y in rotated]
    length = math.sqrt(sum(point * point for point in nearest) + 1e-16)
    return [fp16(norm) * sum(a * point / length for a, point in zip(row, nearest, strict=True)) for row in signs]


def naive_value(x: list[float], bits: int) -> list[float]:
    levels = 2**bits - 1
    scale = max((max(x) - min(x)) / levels, 1e-8)
    codes = [min(max(int((value - min(x)) / scale + 0.5), 0), levels) for value in x]
    return [code * fp16(scale) + fp16(min(x)) for code in codes]


@pytest.mark.parametrize("bits", [3, 4])
def test_the_round_trips_equal_a_naive_loop(bits: int) -> None:
    x = torch.randn(2, 3, 5, 32, generator=torch.Generator().manual_seed(bits)) * 3
    x[0, 0, 0] = 0
    x[0, 0, 2, 7] = 300  # an outlier
    flat = x.clone()
    flat[0, 0, 1] = 1.75  # one value throughout: its scale is too small for FP16 (its rotation lies on boundaries)
    for given, restored, naive in (
        (x, round_trip_keys(x, bits), naive_key),
        (flat, round_trip_values(flat, bits), naive_value),
    ):
        wanted = torch.tensor([naive(row, bits) for row in given.flatten(0, 2).tolist()]).reshape(x.shape)
        # float32 against doubles; no element of these lies so near a boundary that it falls to the other side
        assert torch.allclose(restored, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", [3, 4])
def test_normal_keys_lose_what_theory_says(bits: int) -> None:
    x = torch.randn(4000, 256, generator=torch.Generator().manual_seed(1))
    loss = (round_trip_keys(x, bits) - x).square().sum(1) / x.square().sum(1)
    # cos² of the angle between x and its centroids is 1 - D, both have one length: 2 - 2 sqrt(1 - D). Coordinates of
    # a unit vector in 256 dimensions are a little less spread than a normal's: within 2 %.
    assert float(loss.mean()) == pytest.approx(2 - 2 * math.sqrt(1 - LEAST_ERROR[bits]), rel=0.02)


def test_what_fp16_cannot_hold_is_not_saturated() -> None:
    assert not round_trip_keys(torch.full((1, 64), 9000.0), 4).isfinite().any()  # its norm is 72,000
    assert not round_trip_values(torch.linspace(-7e4, 7e4, 64)[None], 4).isfinite().any()
    broken = torch.ones(1, 64)
    broken[0, 3] = math.nan
    assert round_trip_keys(broken, 4).isnan().all()
    assert round_trip_values(broken, 4).isnan().all()


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_stored_is_the_round_trip_of_what_auto_stores(bf16_folder: Path, preset: str) -> None:
    # nothing before this layer has a KV cache
    keys, values = stored_by(load_model(bf16_folder, kv_cache_dtype="auto").model)
    stored_keys, stored_values = stored_by(load_model(bf16_folder, kv_cache_dtype=preset).model)
    key_bits, value_bits = PRESETS[preset]
    if key_bits == 8:
        assert torch.equal(stored_keys, keys.to(torch.float8_e4m3fn).to(keys.dtype))
    else:
        assert torch.equal(stored_keys, round_trip_keys(keys, key_bits))
    assert torch.equal(stored_values, round_trip_values(values, value_bits))


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "turboquant_4bit_nc"])
def test_chunks_steps_and_prefixes_attend_to_the_same_keys(bf16_folder: Path, dtype: str) -> None:
    model = load_model(bf16_folder, dtype=torch.float32, kv_cache_dtype=dtype).model
    plain = load_model(bf16_folder, dtype=torch.float32).model

    def in_parts(edges: list[int]) -> Tensor:
        cache = DynamicCache(config=model.config)
        parts = itertools.pairwise(edges)
        return torch.cat(
            [model(input_ids=IDS[:, a:b], past_key_values=cache, use_cache=True).logits for a, b in parts], 1
        )

    with torch.no_grad():
        scored = model(input_ids=IDS, use_cache=False).logits
        damage = float((scored - plain(input_ids=IDS, use_cache=False).logits).abs().max())
        chunks, steps = in_parts([0, 12, 30]), in_parts([0, 10, *range(11, 31)])
    assert damage > 1e-4
    # A coordinate on a boundary may fall to either side in one of many sums.
    assert float((chunks - scored).abs().max()) < 0.1 * damage
    assert float((steps - scored).abs().max()) < 0.1 * damage


def test_stored_scales_are_not_read(bf16_folder: Path) -> None:
    calibrated = open_checkpoint(GOLDEN / "ct-fp8-tensor-static")
    assert scales_matter(calibrated, "fp8_e4m3")
    assert not scales_matter(calibrated, "turboquant_4bit_nc")
    load_model(GOLDEN / "ct-fp8-tensor-static", kv_cache_dtype="turboquant_4bit_nc")


def test_a_head_whose_size_is_no_power_of_two_is_refused(bf16_folder: Path) -> None:
    from q36eval.checkpoints import kv_cache

    model = load_model(bf16_folder).model
    for module in model.modules():
        if hasattr(module, "head_dim"):
            module.head_dim = 96
    with raises(UsageError, "kv-cache-unsupported", "96 dimensions"):
        kv_cache.install(model, "turboquant_4bit_nc", {})
    fp8_keys = ROUND_TRIPS["turboquant_k8v4"]
    assert fp8_keys is not None
    assert fp8_keys.fits(96)
