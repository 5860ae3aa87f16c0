"""What every producer of golden checkpoints starts from, and how its result is kept."""

from pathlib import Path
from typing import Any

import torch

TOKENIZER = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
SMALL = {"vocab_size": 40, "head_dim": 16}
"""Sizes that keep further checkpoints small; token ids of `calibration` stay below them."""

MICROSCALED = {"vocab_size": 40, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
"""Sizes of which groups of 32 divide every input."""

THIRTY_TWO = {**MICROSCALED, "hidden_size": 32}
"""Sizes that AutoRound packs, of small files."""


def tiny_config(**settings: Any) -> Any:
    """A `Qwen3_5MoeTextConfig` of one full-attention layer with two experts, changed by `settings`."""
    from transformers import Qwen3_5MoeTextConfig

    smallest = {
        "vocab_size": 136,
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }
    return Qwen3_5MoeTextConfig(**(smallest | settings))


def base_model(**settings: Any) -> Any:
    """One full-attention layer with two experts, in BF16; the same for every producer."""
    from transformers import Qwen3_5MoeForCausalLM

    return randomized(lambda: Qwen3_5MoeForCausalLM(tiny_config(**settings)))


def randomized(build: Any) -> Any:
    """A model in BF16 with the same random weights each time; norms too, so that nothing is at rest."""
    torch.manual_seed(11)
    model = build().to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    return model.eval()


def from_folder(scratch: Path, **settings: Any) -> Any:
    """The base model, saved and loaded: producers copy files from where their model came from."""
    from transformers import AutoModelForCausalLM

    base_model(**settings).save_pretrained(scratch / "base")
    return AutoModelForCausalLM.from_pretrained(scratch / "base", dtype=torch.bfloat16).eval()


def calibration(vocabulary: int = 136) -> list[list[int]]:
    """Eight sequences of random token ids."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, vocabulary, (24,), generator=generator).tolist() for _ in range(8)]


def save_decoded(target: Path, decoded: dict[str, torch.Tensor]) -> None:
    """Keep what the producer's own code decodes its weights to, beside the folder it wrote."""
    from safetensors.torch import save_file

    if not decoded:
        raise SystemExit("the producer wrote no quantized tensor")
    save_file({name: tensor.contiguous() for name, tensor in decoded.items()}, target.parent / "decoded.safetensors")
