"""The kernels of a GPU give the bits of the plain arithmetic on a CPU, and recorded steps answer as unrecorded ones.

Runs where there is a GPU.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3_5MoeForCausalLM

from q36eval.checkpoints import experts
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
from q36eval.checkpoints.packed import PackedWeight
from q36eval.engines.decoding import decode
from q36eval.engines.qwen3_5_moe import fused_layers
from q36eval.engines.qwen3_5_moe.steps import StepMemory
from tests.small_models import text_config

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="it needs a GPU and Triton")

WIDTH = 512
SCHEMES: dict[str, tuple[Callable[[float], ActivationScheme], Callable[[Tensor, Tensor], Tensor]]] = {
    "nvfp4": (
        lambda scale: ActivationScheme("nvfp4", 16, global_scale=scale),
        lambda rows, scale: fake_quantize_nvfp4(rows, scale),
    ),
    "fp8 in groups": (lambda scale: ActivationScheme("fp8", 128), lambda rows, scale: fake_quantize_fp8(rows, 128)),
    "fp8, short group": (lambda scale: ActivationScheme("fp8", 1024), lambda rows, _: fake_quantize_fp8(rows, 1024)),
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


@pytest.mark.parametrize("tokens", [7, 300, 4000])
@pytest.mark.parametrize("other", [20.0, 25.0, None])
def test_experts_are_what_they_are_one_after_the_other(tokens: int, other: float | None) -> None:
    """Gate and up quantize alike, or not, or nothing does; few rows, more than one tile of them, many."""
    torch.manual_seed(2)
    count, width, inner = 8, 256, 128
    plain = torch.nn.Module()
    plain.gate_up_proj = torch.nn.Parameter((torch.randn(count, 2 * inner, width) * 0.05).bfloat16())
    plain.down_proj = torch.nn.Parameter((torch.randn(count, width, inner) * 0.05).bfloat16())
    plain.act_fn = torch.nn.SiLU()
    states, weights = torch.randn(tokens, width).bfloat16(), torch.rand(tokens, 2).bfloat16()
    chosen = torch.stack([torch.randperm(count - 1)[:2] for _ in range(tokens)])  # the last one has no row
    shapes = ((width, 20.0), (width, other or 20.0), (inner, 30.0))
    inputs = [InputQuantizer([ActivationScheme("nvfp4", 16, global_scale=s)] * count, w, "cpu") for w, s in shapes]
    module = QuantizedInputExperts(plain, *inputs).requires_grad_(False)
    if other is None:
        for quantizer in inputs:
            quantizer.forward = lambda x, *others: x if len(others) < 2 else x[others[1]]  # type: ignore[method-assign]
    expected = module(states, chosen, weights).float()
    found = module.cuda()(states.cuda(), chosen.cuda(), weights.cuda()).cpu().float()
    assert float((found - expected).norm() / expected.norm()) < (0.02 if other else 0.005)


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("part", [slice(None), slice(0, 128), slice(128, 256)])
def test_products_with_packed_experts_are_those_with_decoded_ones(divides: bool, part: slice) -> None:
    torch.manual_seed(3)
    count, outputs, width, top_k, tokens = 8, 256, 256, 2, 50

    class Packed(PackedWeight):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.shape = torch.Size((count, outputs, width))

        fp4 = (  # type: ignore[assignment]
            torch.randint(0, 256, (count * outputs, width // 2), dtype=torch.uint8, device="cuda"),
            torch.randint(0, 120, (count * outputs, width // 16), dtype=torch.uint8, device="cuda").view(
                torch.float8_e4m3fn
            ),
            torch.rand(2 * count, device="cuda") * 300 + 1,
            divides,
        )

    packed = Packed()
    values, scales, wholes, _ = packed.fp4
    whole = wholes.repeat_interleave(outputs // 2).unsqueeze(-1)
    scale = scales.float() / whole if divides else scales.float() * whole
    decoded = (unpack_fp4(values).view(len(values), -1, 16) * scale.unsqueeze(-1)).flatten(-2).bfloat16()
    chosen = torch.stack([torch.randperm(count)[:top_k] for _ in range(tokens)]).cuda()
    order = experts.Rows(chosen, count)
    rows = torch.randn(tokens, width, device="cuda").bfloat16()[order.source]
    found = experts._by_kernel(rows, packed, order, part).double()
    own = decoded.view(count, outputs, width)[order.expert][:, part].double()
    expected = torch.einsum("noi,ni->no", own, rows.double())
    # each product is rounded to BF16 once
    assert (
        float(((found - expected).abs() / expected.abs().clamp(min=1e-6 * float(expected.abs().max()))).median()) < 4e-3
    )
    assert float((found - expected).norm() / expected.norm()) < 4e-3
    sorted_ids, place = torch.sort(chosen.reshape(-1), stable=True)
    assert torch.equal(order.expert, sorted_ids)
    assert torch.equal(order.source, place // top_k)


@pytest.mark.parametrize("placement", ["decoded", "packed"])
@pytest.mark.parametrize("name", ["ct-nvfp4", "modelopt-nvfp4", "ct-mixed", "ct-w4a16-group", "gptq-v1", "ct-mxfp4"])
def test_a_model_has_the_weights_that_it_has_on_a_cpu(name: str, placement: str) -> None:
    from q36eval.checkpoints import load_model

    golden = Path(__file__).parents[1] / "assets" / "golden" / name
    here = load_model(golden, device="cuda", placement=placement, emulate_activations=False).model
    for parameter, expected in load_model(golden, emulate_activations=False).model.named_parameters():
        module, _, attribute = parameter.rpartition(".")
        found = getattr(here.get_submodule(module), attribute)
        assert torch.equal(found.cpu().view(torch.int16), expected.view(torch.int16)), parameter


@pytest.fixture
def layers() -> tuple[Any, Any]:
    """A small model on the GPU, with kernels installed, and its configuration."""
    torch.manual_seed(6)
    config = text_config("LFL", 8, hidden_size=256, moe_intermediate_size=128, shared_expert_intermediate_size=128)
    model = Qwen3_5MoeForCausalLM(config).bfloat16().cuda().eval().requires_grad_(False)
    fused_layers.install()
    return model, config


@torch.inference_mode()
def test_a_forward_pass_is_as_near_to_float32_as_the_plain_one(layers: tuple[Any, Any]) -> None:
    """Norms, convolution and experts by kernels round no more than plain operations do, for most tokens.

    Where two experts are nearly as likely, a token takes another one, and the two have little in common: the median.
    """
    model, _ = layers
    ids = torch.randint(0, 1000, (3, 130), generator=torch.Generator().manual_seed(1)).cuda()
    fused = model.model(input_ids=ids, use_cache=False).last_hidden_state.float()
    with fused_layers.plain_layers():
        plain = model.model(input_ids=ids, use_cache=False).last_hidden_state.float()
        exact = model.float().model(input_ids=ids, use_cache=False).last_hidden_state
    assert not torch.equal(fused, plain), "the kernels were not used"
    error, of_plain = (float(((one - exact).norm(dim=-1) / exact.norm(dim=-1)).median()) for one in (fused, plain))
    assert error <= 1.1 * of_plain, f"{error} against {of_plain}"


def behind_the_likeliest(model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> float:
    """The mean of how far the logit of each answer's tokens lies below the greatest one by `model`."""
    behind = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt + answer], device=model.device)
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        logits = model.lm_head(states)[0, len(prompt) - 1 : -1]
        behind.append(logits.amax(-1) - logits.gather(-1, ids[:, len(prompt) :].T).squeeze(-1))
    return float(torch.cat(behind).mean())


@torch.inference_mode()
def test_recorded_steps_answer_as_well_as_those_over_a_growing_cache() -> None:
    """By the same model in float32: in BF16 either takes the other of two tokens that are nearly as likely."""
    torch.manual_seed(5)
    config = text_config("LFL", 4, hidden_size=128, moe_intermediate_size=64, shared_expert_intermediate_size=64)
    model = Qwen3_5MoeForCausalLM(config).bfloat16().to("cuda").eval().requires_grad_(False)
    exact = copy.deepcopy(model).float()
    rng = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 1000, (n,), generator=rng).tolist() for n in (3, 17, 40, 9, 230, 5, 33, 12, 64)]
    budgets = [60, 1, 140, 30, 70, 90, 20, 24, 140]
    growing = behind_the_likeliest(exact, prompts, decode(model, prompts, budgets, set(), 0))
    drawn = torch.randint(2, 1000, (sum(budgets),), generator=rng).split(budgets)
    assert growing < 0.1 * behind_the_likeliest(exact, prompts, [tokens.tolist() for tokens in drawn])
    memory = StepMemory(model)
    for _ in range(2):
        found = decode(model, prompts, budgets, set(), 0, memory=memory)
        assert memory.not_recorded is None
        assert len(memory.graphs) > 3
        assert [len(answer) for answer in found] == budgets
        assert behind_the_likeliest(exact, prompts, found) < 2 * growing
