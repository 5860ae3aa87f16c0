"""Keys and values pass one exact round trip where an engine stores them: with a cache and without one.

States of the linear layers pass other dtypes between chunks and steps; FP16 overflows as where it is served.
TurboQuant's round trips against numbers worked by hand, a naive loop, and what theory says they cost.
"""

import itertools
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from q36eval.checkpoints import load_model, open_checkpoint
from q36eval.checkpoints.delta_states import CHUNK, RoundedStates
from q36eval.checkpoints.kv_cache import ROUND_TRIPS, declared_kv_cache_dtype, fp8_e4m3, scales_matter
from q36eval.checkpoints.turboquant import PRESETS, centroids, hadamard, round_trip_keys, round_trip_values
from q36eval.engines import EngineSettings, identity_of, open_engine
from q36eval.engines.base import GenerationRequest, ScoreRequest
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

from .inspection.damage import config, edit_tensors
from .test_golden import GOLDEN

SANDBOX = Path(__file__).parents[3] / "data" / "sandbox" / "bf16"
IDS = torch.arange(60).reshape(2, 30)
ATTENTION = "model.layers.1.self_attn"


def e4m3_grid() -> Tensor:
    """Every finite E4M3 value, by its definition (OCP FP8, arXiv 2209.05433): bias 7, no infinities."""
    values = []
    for code in range(127):  # 127 is NaN
        exponent, mantissa = code >> 3, code & 7
        values.append((mantissa / 8) * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return torch.tensor([-value for value in values[:0:-1]] + values, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 0.0071])
def test_the_round_trip_takes_the_nearest_value_and_saturates(scale: float) -> None:
    x = torch.cat([torch.linspace(-600, 600, 5001) * scale, torch.tensor([0.0, 2.0**-11, -3e-4])]).reshape(1, 1, -1, 1)
    scales = torch.full((1, 1, 1, 1), scale)
    grid, found = e4m3_grid(), fp8_e4m3(x, scales).double() / scales.double()
    wanted = (x / scales).double().clamp(-448, 448)
    distance = (found - wanted).abs().flatten()
    nearest = (grid - wanted.reshape(-1, 1)).abs().amin(1)
    assert torch.allclose(distance, nearest, rtol=0, atol=1e-4)  # the product with the scale is rounded to float32
    assert float(found.max()) == pytest.approx(448)


def with_scales(source: Path, target: Path, scales: dict[str, Tensor], **quantization: Any) -> Path:
    shutil.copytree(source, target)
    edit_tensors(target, lambda tensors: tensors.update(scales))
    if quantization:
        config(quantization_config=quantization)(target)
    return target


def stored_by(model: Any) -> tuple[Tensor, Tensor]:
    """Keys and values [2, heads, 30, D] in the cache of the first full-attention layer after one prefill."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=IDS, past_key_values=cache, use_cache=True)
    return cache.layers[1].keys, cache.layers[1].values


@pytest.mark.parametrize("which", ["unit", "calibrated"])
def test_what_is_stored_is_the_round_trip_of_what_auto_stores(bf16_folder: Path, tmp_path: Path, which: str) -> None:
    names = {"k": f"{ATTENTION}.k_proj.k_scale", "v": f"{ATTENTION}.v_scale"}
    values = {"k": 0.021, "v": 0.0043} if which == "calibrated" else {"k": 1.0, "v": 1.0}
    stored = {names[key]: torch.tensor(value) for key, value in values.items()} if which == "calibrated" else {}
    stored["mtp.layers.0.self_attn.k_scale"] = torch.tensor(9.0)
    folder = with_scales(bf16_folder, tmp_path / "scaled", stored)
    plain = stored_by(load_model(folder).model)
    quantized = stored_by(load_model(folder, kv_cache_dtype="fp8_e4m3").model)
    # Nothing before this layer has a KV cache, so both models compute the same keys and values.
    for before, after, key in zip(plain, quantized, "kv", strict=True):
        assert torch.equal(after, fp8_e4m3(before, torch.full((1, 1, 1, 1), values[key])))
        assert not torch.equal(after, before)


def test_checkpoints_say_what_they_want(bf16_folder: Path, tmp_path: Path) -> None:
    declared = {name: declared_kv_cache_dtype(open_checkpoint(GOLDEN / name)) for name in ("modelopt-fp8", "ct-nvfp4")}
    assert declared == {"modelopt-fp8": "fp8_e4m3", "ct-nvfp4": "auto"}
    assert load_model(GOLDEN / "ct-fp8-tensor-static").report.kv_cache_dtype == "fp8_e4m3"
    assert load_model(GOLDEN / "ct-fp8-tensor-static", kv_cache_dtype="auto").report.kv_cache_dtype == "auto"
    int8 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "INT8", "ignore": ["*"]}
    folder = with_scales(bf16_folder, tmp_path / "int8", {}, **int8)
    with raises(UsageError, "kv-cache-unsupported"):
        load_model(folder)
    assert load_model(folder, kv_cache_dtype="auto").report.kv_cache_dtype == "auto"


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ({f"{ATTENTION}.k_scale": torch.tensor(0.0)}, ("scale-invalid",)),
        (
            {f"{ATTENTION}.k_scale": torch.tensor(1.0), f"{ATTENTION}.k_proj.k_scale": torch.tensor(1.0)},
            ("tensor-duplicate",),
        ),
        ({f"{ATTENTION}.k_scale": torch.ones(3)}, ("tensor-shape",)),
        ({"model.layers.7.self_attn.k_scale": torch.tensor(1.0)}, ("kv-scale-unexpected", "7")),
    ],
)
def test_scales_that_mean_nothing_are_refused(
    bf16_folder: Path, tmp_path: Path, scales: dict[str, Tensor], expected: tuple[str, ...]
) -> None:
    with raises(CorruptCheckpointError, *expected):
        load_model(with_scales(bf16_folder, tmp_path / "wrong", scales), kv_cache_dtype="fp8_e4m3")


def test_the_identity_says_what_is_emulated_and_other_dtypes_are_refused() -> None:
    auto, fp8 = (identity_of(EngineSettings(SANDBOX, kv_cache_dtype=dtype)) for dtype in (None, "fp8_e4m3"))
    assert auto.differing_fields(fp8) == ["kv_cache_dtype"]
    assert (auto.kv_cache_dtype, fp8.kv_cache_dtype) == ("auto", "fp8_e4m3")
    states = {"recurrent_state_dtype": "bfloat16", "conv_state_dtype": "float16"}
    emulated = identity_of(EngineSettings(SANDBOX, **states))  # type: ignore[arg-type]
    assert dict(set(emulated.settings.items()) - set(auto.settings.items())) == states
    assert open_engine(EngineSettings(SANDBOX, kv_cache_dtype="fp8_e4m3")).identity == fp8
    with raises(UsageError, "option-value", "'fp8'", "float32, bfloat16, float16"):
        identity_of(EngineSettings(SANDBOX, recurrent_state_dtype="fp8"))


def first_states(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Recurrent and convolution state of the first layer after one prefill."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    return cache.layers[0].recurrent_states[0], cache.layers[0].conv_states[0]


def rounded(**dtypes: str) -> Any:
    return load_model(SANDBOX, dtype=torch.float32, **dtypes).model  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("length", [1, CHUNK, CHUNK + 1, 3 * CHUNK + 1, 3 * CHUNK + 17])
def test_in_float32_nothing_changes(length: int) -> None:
    ids = (torch.arange(2 * length) % 700).reshape(2, length)
    plain, chunked = load_model(SANDBOX, dtype=torch.float32).model, rounded(recurrent_state_dtype="float32")
    assert any(isinstance(module, RoundedStates) for module in chunked.modules())
    with torch.no_grad():
        wanted, found = (model(input_ids=ids, use_cache=False).logits for model in (plain, chunked))
    assert float((wanted - found).abs().max()) < 1e-3  # sums of other lengths
    for one, other in zip(first_states(plain, ids), first_states(chunked, ids), strict=True):
        assert torch.allclose(one, other, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_kept_is_a_number_of_that_dtype_in_prefill_and_in_every_step(dtype: str) -> None:
    ids = (torch.arange(70) * 7 % 700).reshape(1, -1)
    model = rounded(recurrent_state_dtype=dtype, conv_state_dtype=dtype)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        for part in (ids[:, :67], ids[:, 67:68], ids[:, 68:69]):
            model(input_ids=part, past_key_values=cache, use_cache=True)
            for state in (cache.layers[0].recurrent_states[0], cache.layers[0].conv_states[0]):
                assert torch.equal(state, state.to(getattr(torch, dtype)).float())
                assert bool(state.any())
        plain = load_model(SANDBOX, dtype=torch.float32).model
        ids = ids.repeat(1, 8)
        away = (plain(input_ids=ids).logits - model(input_ids=ids).logits).abs().amax(-1)[0]
    # before the first rounding nothing differs but the length of sums
    assert float(away[:CHUNK].max()) < 1e-3 < float(away[CHUNK:].max())


@pytest.mark.long
def test_a_shared_prefix_is_lent_and_stays_as_it_is() -> None:
    """Rows that are scored after a prefix must not write to what the next batch starts from."""
    engine = open_engine(EngineSettings(SANDBOX, recurrent_state_dtype="bfloat16"))
    prefix = tuple(range(5, 5 + 100))
    ends = [tuple(range(200 + 3 * n, 200 + 3 * n + 90)) for n in range(4)]
    requests = [ScoreRequest(str(n), prefix + end, len(prefix), "x", len(prefix)) for n, end in enumerate(ends)]
    first, again = ({s.request.key: s.hidden_states for s in engine.score(requests)} for _ in range(2))
    for key, states in first.items():
        assert torch.equal(states, again[key])
    answers = list(engine.generate([GenerationRequest("g", prefix, 5)]))
    assert answers[0].error is None


# -- TurboQuant


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
    return struct.unpack("<e", struct.pack("<e", x))[0]


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
def test_what_is_stored_is_the_presets_round_trip_of_what_auto_stores(bf16_folder: Path, preset: str) -> None:
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
    assert ROUND_TRIPS["turboquant_k8v4"].fits(96)
