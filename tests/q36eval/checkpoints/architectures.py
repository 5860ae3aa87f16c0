"""Tiny models with random weights of every architecture that is supported, by transformers' own classes."""

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_HEADS = {"head_dim": 16}
_WINDOW = _HEADS | {"sliding_window": 16}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
_LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
_GROUPED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
_DELTA = _HEADS | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 32}
_MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "layer_types": ["mamba", "attention"],
}
_SCALED = {"logits_scaling": 4.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25}

SETTINGS: dict[str, dict[str, Any]] = {
    "cohere2": _WINDOW | {"logit_scale": 0.25},
    "deepseek_v2": _LATENT | _GROUPED | {"num_key_value_heads": 4},
    "deepseek_v3": _LATENT | _GROUPED | {"num_key_value_heads": 4},
    "ernie4_5": _HEADS,
    "ernie4_5_moe": _HEADS | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "exaone4": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma2": _WINDOW,
    "gemma3_text": _WINDOW,
    "glm4": _HEADS,
    "glm4_moe": _HEADS | _GROUPED | {"n_group": 1},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "gpt_neox": {},
    "gpt_oss": _WINDOW | _LOCAL,
    "granite": _SCALED,
    "granitemoe": _LOCAL | {"logits_scaling": 4.0},
    "granitemoehybrid": _LOCAL | _MAMBA | {"shared_intermediate_size": 32},
    "hunyuan_v1_dense": _HEADS,
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "llama": {},
    "llama4_text": _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64},
    "minimax_m2": _HEADS | _LOCAL | {"rotary_dim": 8},
    "ministral3": _HEADS,
    "mistral": _HEADS,
    "mixtral": _HEADS | _LOCAL,
    "nemotron": _HEADS,
    "olmo2": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "phi": {},
    "phi3": {"tie_word_embeddings": False},
    "phimoe": {"num_local_experts": 4},
    "qwen2": {},
    "qwen3": _HEADS,
    "qwen3_5_moe_text": _DELTA | _SHARED,
    "qwen3_5_text": _DELTA,
    "qwen3_moe": _HEADS | _EXPERTS,
    "qwen3_next": _DELTA | _SHARED,
    "seed_oss": _HEADS,
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
"""By `model_type`, what differs from the common sizes."""
VARIANTS = {
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
}
_TOWER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_TOWER = {"hidden_size": 32, "intermediate_size": 64, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
_WIDTHS = {"projector_input_dim": 32, "projector_output_dim": 32, "vision_output_dim": 32}
WRAPPERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {"vision_config": _TOWER, "mm_tokens_per_image": 4}),
    "llama4": ("llama4_text", {"vision_config": _TOWER | _WIDTHS}),
    "mistral3": ("mistral", {"vision_config": _TOWER | {"model_type": "pixtral"}}),
    "qwen3_5": ("qwen3_5_text", {"vision_config": _QWEN_TOWER}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {"vision_config": _QWEN_TOWER}),
}
"""Of several modalities: the text model and the other settings."""
NAMES = sorted({*SETTINGS, *VARIANTS})


def tiny_model(name: str) -> Any:
    """The model of that architecture, in BF16; no weight, norm or bias is zero or one."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    kind, more = WRAPPERS.get(name) or VARIANTS.get(name, (name, {}))
    settings = SIZES | SETTINGS[kind]
    if name in WRAPPERS:
        config = AutoConfig.for_model(name, text_config=settings | {"model_type": kind}, **more)
    else:
        config = AutoConfig.for_model(kind, **(settings | more))
    model_class = AutoModelForImageTextToText if name in WRAPPERS else AutoModelForCausalLM
    torch.manual_seed(0)
    model = model_class.from_config(config, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter.float() + 0.05 * torch.randn(parameter.shape)).to(parameter.dtype))
        for buffer_name, buffer in model.named_buffers():
            if "correction_bias" in buffer_name:
                buffer.copy_(0.01 * torch.randn(buffer.shape))
    return model


def saved(name: str, folder: Path) -> Path:
    """The folder, with that model in it as transformers stores it."""
    tiny_model(name).save_pretrained(folder)
    return folder
