"""Small models of the sandbox's architecture, and rounding that damages their experts."""

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.sandbox.architecture import text_config


def random_model(layers: str = "LFL", num_experts: int = 4, width: int = 64, seed: int = 5) -> Any:
    """A model with random weights in float32: so close to exact values that a wrong mask or state stands out, while in
    BF16 two shapes of one product may round differently, and a random model's argmax is often close."""
    from transformers import Qwen3_5MoeForCausalLM

    torch.manual_seed(seed)
    inner = {"moe_intermediate_size": width // 2, "shared_expert_intermediate_size": width // 2}
    return Qwen3_5MoeForCausalLM(text_config(layers, num_experts, hidden_size=width, **inner)).float().eval()


def random_prompts(lengths: Sequence[int], seed: int = 3) -> list[list[int]]:
    """Token ids of those many tokens each."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 1000, (length,), generator=rng).tolist() for length in lengths]


def round_to_integers(weight: torch.Tensor, bits: int, group: int = 32) -> torch.Tensor:
    """Symmetric round-to-nearest of `weight` [..., columns] in groups of columns, back in its own dtype."""
    groups = weight.float().reshape(*weight.shape[:-1], -1, group)
    largest = 2 ** (bits - 1) - 1
    scale = (groups.abs().amax(-1, keepdim=True) / (largest + 0.5)).clamp(min=1e-12)
    rounded: torch.Tensor = (groups / scale).round().clamp(-largest - 1, largest) * scale
    return rounded.reshape(weight.shape).to(weight.dtype)


@torch.no_grad()
def damage_experts(model: Any, bits: int) -> None:
    """Round all routed experts of `model` in place."""
    for name, parameter in model.named_parameters():
        if "mlp.experts." in name:
            parameter.copy_(round_to_integers(parameter, bits))
