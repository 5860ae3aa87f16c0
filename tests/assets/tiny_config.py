"""The judged architecture at its smallest: what tests and golden checkpoints are made of."""

from typing import Any


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
