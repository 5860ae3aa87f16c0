"""Emulated activations equal compressed-tensors' own fake quantization, module by module and expert by expert."""

import math
from collections.abc import Callable

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from torch import Tensor, nn
from transformers import Qwen3_5MoeTextConfig
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeExperts

from q36eval.checkpoints import emulation
from q36eval.checkpoints.architecture import Place
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.formats.parts import WHOLE_ROW
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def inputs(rows: int, columns: int) -> Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 3
    x[0] = 0  # a row whose every group is zero
    x[1, ::7] *= 300  # outliers that saturate a local scale
    x[2], x[3] = x[2].abs() + 1, -x[3].abs() - 1  # zero-points at either end of their range
    return x.bfloat16()


def library(x: Tensor, args: QuantizationArgs, scheme: ActivationScheme) -> Tensor:
    """compressed-tensors' quantization of `x` [N, D] in float32, rounded once."""
    # With two axes the library's "token" strategy takes one scale for all rows: give it the three that models have.
    rows = x.float().unsqueeze(0)
    if scheme.static_scale is not None:
        return fake_quantize(rows, torch.tensor([scheme.static_scale]), torch.zeros(1), args)[0].to(x.dtype)
    static = None if scheme.global_scale is None else torch.tensor([scheme.global_scale])
    scale, zero = compute_dynamic_scales_and_zp(rows, args, nn.Module(), static)
    return fake_quantize(rows, scale, zero, args, static)[0].to(x.dtype)


def preset(name: str) -> QuantizationArgs:
    return preset_name_to_scheme(name, ["Linear"]).input_activations


NVFP4, NVFP4_SMALL = ActivationScheme("nvfp4", 16, 37.5), ActivationScheme("nvfp4", 16, 0.9)
STATIC_INT8 = QuantizationArgs(num_bits=8, type="int", strategy="tensor", dynamic=False, symmetric=True)
ASYMMETRIC_INT8 = QuantizationArgs(num_bits=8, type="int", strategy="token", dynamic=True, symmetric=False)
CASES = {
    "NVFP4": (preset("NVFP4"), NVFP4),
    "NVFP4, saturating": (preset("NVFP4"), NVFP4_SMALL),
    "FP8 per group": (preset("FP8_BLOCK"), ActivationScheme("fp8", 128)),
    "FP8 per token": (preset("FP8_DYNAMIC"), ActivationScheme("fp8", WHOLE_ROW)),
    "FP8 static": (preset("FP8"), ActivationScheme("fp8", WHOLE_ROW, static_scale=0.0123)),
    "MXFP4": (preset("MXFP4"), ActivationScheme("mxfp4", 32, exponent="near")),
    "MXFP8": (preset("MXFP8"), ActivationScheme("mxfp8", 32, exponent="near")),
    "INT8 per token": (preset("W8A8"), ActivationScheme("int8", WHOLE_ROW)),
    "INT8 static": (STATIC_INT8, ActivationScheme("int8", WHOLE_ROW, static_scale=0.07)),
    "INT8 asymmetric": (ASYMMETRIC_INT8, ActivationScheme("int8-asymmetric", WHOLE_ROW)),
}


@pytest.mark.parametrize(("case", "width"), [*((case, 256) for case in CASES), ("FP8 per group", 192)])
def test_quantized_linear_equals_the_library(case: str, width: int) -> None:
    """The library refuses a short last group, and takes one that zeros fill up."""
    args, scheme = CASES[case]
    linear = nn.Linear(width, 32, bias=False, dtype=torch.bfloat16)
    wrapped = emulation.QuantizedInputLinear(linear, scheme)
    x = inputs(20, width)
    expected = library(nn.functional.pad(x, (0, 256 - width)), args, scheme)[:, :width]
    assert torch.equal(wrapped.quantize_input(x), expected)
    assert torch.equal(wrapped.quantize_input(x.unsqueeze(0))[0], expected)
    assert torch.equal(wrapped.quantize_input(x[2:3]), expected[2:3]), "whatever is in the batch beside it"
    assert not torch.equal(expected, x)
    assert torch.equal(wrapped(x), linear(expected))


def test_fp4_rounding_goes_to_the_nearest_value_ties_to_the_even_code() -> None:
    midpoints = (FP4[1:] + FP4[:-1]) / 2
    tied = torch.where(torch.arange(7) % 2 == 0, FP4[:-1], FP4[1:])
    assert torch.equal(emulation.round_to_fp4(midpoints), tied)
    x = torch.linspace(-6, 6, 4001)
    grid = torch.cat([FP4, -FP4])
    nearest = (x[:, None] - grid).abs().min(dim=1).values
    assert torch.equal((emulation.round_to_fp4(x) - x).abs(), nearest)


@pytest.mark.parametrize(("kind", "top", "midpoints"), [("mxfp4", 6, FP4), ("mxfp8", 448, None)])
def test_microscaled_inputs_of_model_optimizer_group_by_group(kind: str, top: int, midpoints: Tensor | None) -> None:
    """The least power of two under which nothing is clipped; its own `MXFP8QTensor.quantize` gives the same bits (ran),
    and its `MXFP4QTensor` all but the ties, which its kernel for inputs rounds to even."""
    x = inputs(20, 256)
    found = emulation.fake_quantize_mx(x, kind, "up").float()
    for row, quantized in zip(x.float().split(1), found.split(1), strict=True):
        for group, ours in zip(row[0].split(32), quantized[0].split(32), strict=True):
            largest = float(group.abs().max())
            power = 2.0 ** math.ceil(math.log2(largest / top)) if largest else 1.0
            values = group / power
            assert values.abs().max() <= top
            if midpoints is None:
                assert torch.equal(ours, values.to(torch.float8_e4m3fn).float() * power)
            else:
                nearest = (values.abs()[:, None] - midpoints).abs().amin(1)
                assert torch.equal((ours / power - values).abs(), nearest)


class Experts(Qwen3_5MoeExperts):  # type: ignore[misc]  # transformers has no types
    """Four experts of random weights."""

    def __init__(self) -> None:
        sizes = {"num_experts": 4, "hidden_size": 128, "moe_intermediate_size": 32}
        super().__init__(Qwen3_5MoeTextConfig(**sizes))
        generator = torch.Generator().manual_seed(5)
        self.gate_up_proj = nn.Parameter((torch.randn(4, 64, 128, generator=generator) * 0.1).bfloat16())
        self.down_proj = nn.Parameter((torch.randn(4, 128, 32, generator=generator) * 0.1).bfloat16())


def naive(x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor, quantize: Callable[..., Tensor]) -> Tensor:
    """Token by token, expert by expert."""
    out = torch.zeros(len(x), 128)
    for token in range(len(x)):
        for slot in range(chosen.shape[1]):
            e = int(chosen[token, slot])
            gate_weight, up_weight = experts.gate_up_proj[e].chunk(2)
            gate = quantize(x[token : token + 1], e, "gate_proj") @ gate_weight.T
            up = quantize(x[token : token + 1], e, "up_proj") @ up_weight.T
            inner = quantize(experts.act_fn(gate) * up, e, "down_proj")
            out[token] += ((inner @ experts.down_proj[e].T) * weights[token, slot])[0].float()
    return out


def nvfp4_under(up_differs: bool) -> Callable[[int, str], ActivationScheme]:
    def scheme(e: int, projection: str) -> ActivationScheme:
        more = 3 * up_differs if projection == "up_proj" else 0
        return ActivationScheme("nvfp4", 16, 5.0 + 20 * e + more + (projection == "down_proj"))

    return scheme


def fp8_static(e: int, projection: str) -> ActivationScheme:
    return ActivationScheme("fp8", WHOLE_ROW, static_scale=0.001 * (1 + e) + 0.002 * (projection == "down_proj"))


@pytest.mark.parametrize(
    ("args", "scheme_of"),
    [
        (preset("NVFP4"), nvfp4_under(False)),
        (preset("NVFP4"), nvfp4_under(True)),
        (preset("FP8"), fp8_static),
        (preset("W8A8"), lambda e, projection: ActivationScheme("int8", WHOLE_ROW)),
        (preset("FP8_DYNAMIC"), lambda e, projection: ActivationScheme("fp8", WHOLE_ROW)),
    ],
    ids=["NVFP4, gate and up alike", "NVFP4, gate and up apart", "FP8 static", "INT8 per token", "FP8 per token"],
)
def test_every_expert_is_quantized_under_its_own_scales(
    args: QuantizationArgs, scheme_of: Callable[[int, str], ActivationScheme]
) -> None:
    rows = {"gate_proj": slice(0, 32), "up_proj": slice(32, 64), "down_proj": slice(0, 128)}
    projections, held = tuple(rows), "layer.mlp.experts"
    places = {
        f"{held}.{e}.{p}.weight": Place(f"{held}.{'down_proj' if p == 'down_proj' else 'gate_up_proj'}", (e, rows[p]))
        for e in range(4)
        for p in projections
    }
    schemes = {f"layer.mlp.experts.{e}.{p}": scheme_of(e, p) for e in range(4) for p in projections}
    experts = Experts()
    model = nn.ModuleDict({"layer": nn.ModuleDict({"mlp": nn.ModuleDict({"experts": experts})})})
    assert emulation.install(model, schemes, places) == 12
    x, generator = inputs(11, 128), torch.Generator().manual_seed(9)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(11)])
    weights = torch.rand(11, 2, generator=generator).bfloat16()
    with torch.no_grad():
        expected = naive(x, experts, chosen, weights, lambda v, e, p: library(v, args, scheme_of(e, p)))
        found = model.get_submodule("layer.mlp.experts")(x, chosen, weights).float()
    # The products run over blocks of rows here and one row at a time there: BF16 rounding of equal sums may differ.
    assert torch.allclose(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_experts_without_a_scheme_keep_their_inputs() -> None:
    scheme = ActivationScheme("nvfp4", 16, 4.0)
    quantizer = emulation.InputQuantizer([scheme, None], 128, "cpu")
    x = inputs(6, 128)
    out = quantizer(x, torch.tensor([0, 1, 0, 1, 0, 1]))
    assert torch.equal(out[1::2], x[1::2])
    assert torch.equal(out[::2], library(x[::2], preset("NVFP4"), scheme))


def test_experts_of_several_kinds_and_short_groups_of_integers_are_refused() -> None:
    mixed = [ActivationScheme("fp8", WHOLE_ROW), ActivationScheme("fp8", WHOLE_ROW, static_scale=1.0)]
    with raises(CorruptCheckpointError, "quantization-mixed"):
        emulation.InputQuantizer(mixed, 128, "cpu")
    with raises(UsageError, "activations-unsupported", "192 features in groups of 128"):
        emulation.InputQuantizer([ActivationScheme("int8", 128)], 192, "cpu")


def test_inputs_stay_as_they_are_until_a_block_ends() -> None:
    """What is tried of a model at its start is then free of rounding, which on a real model changes states by 24 %."""
    linear = nn.Linear(64, 8, bias=False, dtype=torch.bfloat16)
    x = inputs(4, 64)
    model = nn.Sequential(emulation.QuantizedInputLinear(linear, NVFP4))
    quantized = model(x)
    with emulation.inputs_as_they_are(model):
        assert torch.equal(model(x), linear(x))
    assert torch.equal(model(x), quantized)
    assert not torch.equal(quantized, linear(x))
