"""Emulated activations equal compressed-tensors' own fake quantization, module by module and expert by expert."""

from collections.abc import Callable

import pytest
import torch
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from torch import Tensor, nn

from q36eval.checkpoints import emulation
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.errors import CorruptCheckpointError

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def inputs(rows: int, columns: int) -> Tensor:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns)) * 3
    x[0] = 0  # a row whose every group is zero
    x[1, ::7] *= 300  # outliers that saturate a local scale
    return x.bfloat16()


def library(x: Tensor, preset: str, global_scale: float | None) -> Tensor:
    """compressed-tensors' quantization of `x` in float32, rounded once."""
    args = preset_name_to_scheme(preset, ["Linear"]).input_activations
    assert args is not None
    static = None if global_scale is None else torch.tensor([global_scale])
    scale, zero = compute_dynamic_scales_and_zp(x.float(), args, nn.Module(), static)
    return fake_quantize(x.float(), scale, zero, args, static).to(x.dtype)


CASES = [("NVFP4", "nvfp4", 16, 37.5), ("NVFP4", "nvfp4", 16, 0.9), ("FP8_BLOCK", "fp8", 128, None)]


@pytest.mark.parametrize(("preset", "kind", "group", "global_scale"), CASES)
def test_quantized_linear_equals_the_library(preset: str, kind: str, group: int, global_scale: float | None) -> None:
    linear = nn.Linear(256, 32, bias=False, dtype=torch.bfloat16)
    wrapped = emulation.QuantizedInputLinear(linear, ActivationScheme(kind, group, global_scale))
    x = inputs(20, 256)
    expected = library(x, preset, global_scale)
    assert torch.equal(wrapped.quantize_input(x), expected)
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


class Experts(nn.Module):
    """The parameters transformers' experts have."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.gate_up_proj = nn.Parameter((torch.randn(4, 64, 128, generator=generator) * 0.1).bfloat16())
        self.down_proj = nn.Parameter((torch.randn(4, 128, 32, generator=generator) * 0.1).bfloat16())
        self.act_fn = nn.SiLU()


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


@pytest.mark.parametrize("up_differs", [False, True], ids=["gate and up alike", "gate and up apart"])
def test_every_expert_is_quantized_under_its_own_scales(up_differs: bool) -> None:
    scales = {
        (e, projection): 5.0 + 20 * e + (3 * up_differs if projection == "up_proj" else 0) + (projection == "down_proj")
        for e in range(4)
        for projection in ("gate_proj", "up_proj", "down_proj")
    }
    model = nn.Module()
    model.mlp = nn.Module()
    layer = nn.Module()
    layer.mlp = nn.Module()
    layer.mlp.experts = experts = Experts()
    schemes = {f"layer.mlp.experts.{e}.{p}": ActivationScheme("nvfp4", 16, scale) for (e, p), scale in scales.items()}
    model.layer = layer
    assert emulation.install(model, schemes) == 12
    x, generator = inputs(11, 128), torch.Generator().manual_seed(9)
    chosen = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(11)])
    weights = torch.rand(11, 2, generator=generator).bfloat16()
    with torch.no_grad():
        expected = naive(x, experts, chosen, weights, lambda v, e, p: library(v, "NVFP4", scales[e, p]))
        found = layer.mlp.experts(x, chosen, weights).float()
    # The products run over blocks of rows here and one row at a time there: BF16 rounding of equal sums may differ.
    assert torch.allclose(found, expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def test_experts_without_a_scheme_keep_their_inputs() -> None:
    quantizer = emulation.InputQuantizer([ActivationScheme("nvfp4", 16, 4.0), None], 128, "cpu")
    x = inputs(6, 128)
    out = quantizer(x, torch.tensor([0, 1, 0, 1, 0, 1]))
    assert torch.equal(out[1::2], x[1::2])
    assert torch.equal(out[::2], library(x[::2], "NVFP4", 4.0))


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(CorruptCheckpointError, match="groups of 128"):
        emulation.InputQuantizer([ActivationScheme("fp8", 128)], 200, "cpu")
