"""The sandbox model's shape: Qwen3.6-35B-A3B's architecture, small enough for two CPU cores; and its chat template."""

from pathlib import Path
from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"
LAYER_LETTERS = {"L": LINEAR, "F": FULL}
VOCABULARY_SIZE = 1024
CONTEXT_LENGTH = 4096
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def text_config(layers: str = "LLFLL", num_experts: int = 8, **overrides: Any) -> Any:
    """A `Qwen3_5MoeTextConfig` whose layer types are spelled by `layers` (L linear, F full attention).

    Widths divide by 128, so that FP8 blocks and GPTQ groups of 128 fit every quantized matrix; linear-attention head
    dims are 128, the only ones that served everywhere.
    """
    from transformers import Qwen3_5MoeTextConfig

    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 256,
        "num_hidden_layers": len(layers),
        "layer_types": [LAYER_LETTERS[letter] for letter in layers],
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
        "max_position_embeddings": CONTEXT_LENGTH,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "tie_word_embeddings": False,
    }
    return Qwen3_5MoeTextConfig(**(settings | overrides))
