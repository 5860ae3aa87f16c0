"""The weights a configuration calls for, with their shapes: transformers' `Qwen3_5MoeForCausalLM`, written out.

Written out and not built on the meta device, since that takes transformers' import and 40 layers of 256 experts; a
test compares the two.
"""

import re
from collections.abc import Mapping
from typing import Any

FULL, LINEAR = "full_attention", "linear_attention"
_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)\.(?P<projection>gate|up|down)_proj\.weight")
Shapes = dict[str, tuple[int, ...]]


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of config.json."""
    settings = dict(config.get("text_config") or config)
    if config.get("tie_word_embeddings"):
        settings["tie_word_embeddings"] = True
    return settings


def layer_types(settings: Mapping[str, Any]) -> list[str]:
    """The kind of every layer, as declared or as `full_attention_interval` (4 by default) makes them."""
    declared = settings.get("layer_types")
    if declared is not None:
        return list(declared)
    interval = settings.get("full_attention_interval", 4)
    return [LINEAR if (layer + 1) % interval else FULL for layer in range(settings["num_hidden_layers"])]


def expected_shapes(config: Mapping[str, Any]) -> Shapes:
    """Canonical parameter names and shapes, experts one by one.

    Raises:
        KeyError: the configuration lacks a size (its name is the argument).
    """
    c = text_settings(config)
    hidden, vocabulary = c["hidden_size"], c["vocab_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not c.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for number, kind in enumerate(layer_types(c)):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        attention = _self_attention(c) if kind == FULL else _linear_attention(c)
        shapes |= {f"{layer}.{name}": shape for name, shape in attention.items()}
        shapes |= {f"{layer}.mlp.{name}": shape for name, shape in _mixture(c).items()}
    return shapes


def _self_attention(c: Mapping[str, Any]) -> Shapes:
    """Gated attention: the query projection also gives the output gate."""
    hidden, width = c["hidden_size"], c["head_dim"]
    heads, key_value = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    return {
        "self_attn.q_proj.weight": (2 * heads, hidden),
        "self_attn.k_proj.weight": (key_value, hidden),
        "self_attn.v_proj.weight": (key_value, hidden),
        "self_attn.o_proj.weight": (hidden, heads),
        "self_attn.q_norm.weight": (width,),
        "self_attn.k_norm.weight": (width,),
    }


def _linear_attention(c: Mapping[str, Any]) -> Shapes:
    hidden, heads = c["hidden_size"], c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = heads * c["linear_value_head_dim"]
    return {
        "linear_attn.in_proj_qkv.weight": (2 * keys + values, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (2 * keys + values, 1, c["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (c["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _mixture(c: Mapping[str, Any]) -> Shapes:
    hidden, experts = c["hidden_size"], c["num_experts"]
    shapes: Shapes = {"gate.weight": (experts, hidden), "shared_expert_gate.weight": (1, hidden)}
    widths = {f"experts.{expert}": c["moe_intermediate_size"] for expert in range(experts)}
    widths["shared_expert"] = c["shared_expert_intermediate_size"]
    for module, width in widths.items():
        shapes[f"{module}.gate_proj.weight"] = shapes[f"{module}.up_proj.weight"] = (width, hidden)
        shapes[f"{module}.down_proj.weight"] = (hidden, width)
    return shapes


def fused_place(name: str) -> tuple[str, int, str] | None:
    """(fused parameter, expert, projection) that holds an expert's weight when experts are stored as one tensor."""
    found = _EXPERT.fullmatch(name)
    if not found:
        return None
    fused = "down_proj" if found["projection"] == "down" else "gate_up_proj"
    return f"{found['experts']}.{fused}", int(found["index"]), found["projection"]
