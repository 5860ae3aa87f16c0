"""What a transformers config says of the keys and values that a layer remembers; free of torch."""

from typing import Any

RECURRENT = ("linear_attention", "mamba", "conv")
"""Of a config's `layer_types`, those whose layers remember a state instead of keys and values."""


def attention_shape(config: Any) -> tuple[int, int, int, int]:
    """Query heads, heads of keys and values, and the width of a key and of a value, as a cache holds them."""
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):  # latent attention: transformers remembers what each head reads
        return heads, heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, head, head
