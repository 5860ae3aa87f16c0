"""Small models of the sandbox's architecture, and rounding that damages their experts."""

from collections.abc import Sequence
from typing import Any

import torch

LAYER_TYPES = {"L": "linear_attention", "F": "full_attention"}


def text_config(layers: str, num_experts: int, **overrides: Any) -> Any:
    """A `Qwen3_5MoeTextConfig` whose layer types are spelled by `layers` (L linear, F full attention)."""
    from transformers import Qwen3_5MoeTextConfig

    settings: dict[str, Any] = {
        "vocab_size": 1024,
        "hidden_size": 256,
        "num_hidden_layers": len(layers),
        "layer_types": [LAYER_TYPES[letter] for letter in layers],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "num_experts": num_experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
    }
    return Qwen3_5MoeTextConfig(**(settings | overrides))


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
