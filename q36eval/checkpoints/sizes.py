"""Sizes that config.json gives, checked before anything is as large as they say.

A file of a kilobyte can call for a billion layers or experts, and whoever lists them does not come to an end.
"""

from collections.abc import Mapping
from typing import Any

MOST_LAYERS = 4096
MOST_EXPERTS = 65_536
MOST_WEIGHTS = 2**20
"""Layers times experts: Qwen3.6-35B-A3B has 10,240."""
MOST = 2**31
_SIZES = (
    "full_attention_interval",
    "head_dim",
    "hidden_size",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "shared_expert_intermediate_size",
    "vocab_size",
)
_LIMITS = {"num_hidden_layers": MOST_LAYERS, "num_experts": MOST_EXPERTS}


def sizes_fault(config: Mapping[str, Any]) -> str | None:
    """What makes a size of config.json one that no model has, None where all can be; sizes not given are no fault."""
    settings = config.get("text_config") or config
    if not isinstance(settings, dict):
        return "text_config is not a table"
    for name in _SIZES:
        size, most = settings.get(name), _LIMITS.get(name, MOST)
        if size is not None and (type(size) is not int or not 0 < size <= most):
            return f"{name} is {_shown(size)}, a whole number from 1 to {most} is needed"
    layers, kinds = settings.get("num_hidden_layers", 1), settings.get("layer_types")
    if isinstance(kinds, list) and len(kinds) > MOST_LAYERS:
        return f"layer_types has {len(kinds)} entries, {MOST_LAYERS} at most are possible"
    experts = settings.get("num_experts") or 1
    if (layers or 1) * experts > MOST_WEIGHTS:
        return f"num_hidden_layers is {layers} and num_experts {experts}, which no model has"
    return None


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else f"a {type(value).__name__}"
