"""The kernels of a GPU give the bits of the plain arithmetic on a CPU. Runs where there is a GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.emulation import (
    InputQuantizer,
    QuantizedInputExperts,
    fake_quantize_fp8,
    fake_quantize_fp8_static,
    fake_quantize_int8,
    fake_quantize_nvfp4,
)
from q36eval.checkpoints.formats.parts import WHOLE_ROW, ActivationScheme, unpack_fp4
from q36eval.checkpoints.gpu import has_triton
from q36eval.engines.delta import delta_step

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="it needs a GPU and Triton")

WIDTH = 512
SCHEMES: dict[str, tuple[Callable[[float], ActivationScheme], Callable[[Tensor, Tensor], Tensor]]] = {
    "nvfp4": (
        lambda scale: ActivationScheme("nvfp4", 16, global_scale=scale),
        lambda rows, scale: fake_quantize_nvfp4(rows, scale),
    ),
    "fp8 in groups": (lambda scale: ActivationScheme("fp8", 128), lambda rows, scale: fake_quantize_fp8(rows, 128)),
    "fp8 of a token": (
        lambda scale: ActivationScheme("fp8", WHOLE_ROW),
        lambda rows, scale: fake_quantize_fp8(rows, WIDTH),
    ),
    "fp8, static": (
        lambda scale: ActivationScheme("fp8", WHOLE_ROW, static_scale=scale),
        lambda rows, scale: fake_quantize_fp8_static(rows, scale),
    ),
    "int8 of a token": (
        lambda scale: ActivationScheme("int8", WHOLE_ROW),
        lambda rows, scale: fake_quantize_int8(rows, WIDTH),
    ),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_inputs_are_quantized_to_the_same_bits(name: str) -> None:
    scheme, plainly = SCHEMES[name]
    torch.manual_seed(1)
    inputs = torch.randn(300, WIDTH).bfloat16() * torch.logspace(-6, 4, 300).unsqueeze(1).bfloat16()
    inputs[7] = 0
    inputs[8, :16] = 0
    scales = [3.7, 91.3, 0.02, 1500.0]
    quantizer = InputQuantizer([scheme(scale) for scale in scales[:3]] + [None], WIDTH, "cuda")
    assert quantizer._in_one_pass
    source, expert = torch.randint(0, 300, (2000,)), torch.randint(0, 4, (2000,))
    found = quantizer(inputs.cuda(), expert.cuda(), source.cuda()).cpu()
    rows = inputs[source]
    quantized = plainly(rows, torch.tensor(scales)[expert].unsqueeze(-1))
    expected = torch.where((expert < 3).unsqueeze(-1), quantized, rows)
    assert torch.equal(found, expected), f"{int((found != expected).sum())} of {found.numel()} values differ"
    assert not torch.equal(expected, rows)


def test_experts_are_what_they_are_one_after_the_other() -> None:
    torch.manual_seed(2)
    experts, width, inner = 8, 128, 64
    plain = torch.nn.Module()
    plain.gate_up_proj = torch.nn.Parameter((torch.randn(experts, 2 * inner, width) * 0.05).bfloat16())
    plain.down_proj = torch.nn.Parameter((torch.randn(experts, width, inner) * 0.05).bfloat16())
    plain.act_fn = torch.nn.SiLU()

    def quantizers(other: float) -> list[InputQuantizer]:
        shapes = ((width, 20.0), (width, other), (inner, 30.0))
        return [InputQuantizer([ActivationScheme("nvfp4", 16, global_scale=s)] * experts, w, "cpu") for w, s in shapes]

    for other in (20.0, 25.0):  # gate and up quantize alike, or not
        module = QuantizedInputExperts(plain, *quantizers(other)).requires_grad_(False)
        states, weights = torch.randn(70, width).bfloat16(), torch.rand(70, 2).bfloat16()
        chosen = torch.stack([torch.randperm(experts - 1)[:2] for _ in range(70)])  # the last one has no row
        expected = module(states, chosen, weights)
        found = module.cuda()(states.cuda(), chosen.cuda(), weights.cuda()).cpu()
        assert torch.allclose(found.float(), expected.float(), rtol=0.05, atol=0.02)
        assert float((found.float() - expected.float()).norm() / expected.float().norm()) < 0.02


@pytest.mark.parametrize("divides", [True, False])
def test_fp4_weights_are_decoded_to_the_same_bits(divides: bool) -> None:
    from q36eval.checkpoints._quantization_kernels import decode_fp4_rows

    torch.manual_seed(3)
    rows, width, height = 96, 256, 8
    values = torch.randint(0, 256, (rows, width // 2), dtype=torch.uint8)
    scales = torch.randint(0, 127, (rows, width // 16), dtype=torch.uint8).view(torch.float8_e4m3fn)
    wholes = torch.rand(rows // height) * 300 + 0.01
    whole = wholes.repeat_interleave(height).unsqueeze(-1)
    scale = scales.float() / whole if divides else scales.float() * whole
    expected = (unpack_fp4(values).view(rows, -1, 16) * scale.unsqueeze(-1)).flatten(-2).bfloat16()
    found = torch.empty(rows, width, dtype=torch.bfloat16, device="cuda")
    count = found.numel()
    decode_fp4_rows[(-(-count // 4096),)](
        values.cuda(),
        scales.cuda(),
        wholes.cuda(),
        found,
        count,
        width=width,
        height=height,
        divides=divides,
        rounds=divides,
        block=4096,
    )
    assert torch.equal(found.cpu().view(torch.int16), expected.view(torch.int16))


def test_a_delta_step_is_the_plain_one() -> None:
    torch.manual_seed(4)
    batch, heads, keys, values = 5, 4, 128, 128
    query, key = torch.randn(batch, 1, heads, keys).bfloat16(), torch.randn(batch, 1, heads, keys).bfloat16()
    value, state = torch.randn(batch, 1, heads, values).bfloat16(), torch.randn(batch, heads, keys, values)
    gates = {"g": -torch.rand(batch, 1, heads), "beta": torch.rand(batch, 1, heads).bfloat16()}
    expected, after = delta_step(query, key, value, **gates, initial_state=state.clone())
    own = state.cuda()
    on_gpu = {name: gate.cuda() for name, gate in gates.items()}
    found, same = delta_step(query.cuda(), key.cuda(), value.cuda(), **on_gpu, initial_state=own)
    assert same is own
    assert torch.allclose(own.cpu(), after, rtol=1e-5, atol=1e-5)
    assert torch.allclose(found.cpu().float(), expected.float(), rtol=1e-2, atol=1e-2)
