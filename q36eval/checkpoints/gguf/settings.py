"""The text model's configuration as a GGUF's metadata says it, in the words of config.json.

Source: `conversion/base.py` and `conversion/qwen.py` of llama.cpp (`set_gguf_parameters`), and what its loader makes of
an entry that is missing (`src/models/qwen35moe.cpp`). Numbers are stored as float32: the shortest decimal that is the
same float32 is taken, so that 1e-06 is 1e-06. What a GGUF has no word for (dtype, biases, dropout) is not here.
"""

import struct
from collections.abc import Mapping
from typing import Any

from q36eval.checkpoints.gguf.names import HYBRIDS

_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
_DENSE_SIZES = {key: name for key, name in _SIZES.items() if not key.startswith("expert_")}
_DENSE_SIZES["feed_forward_length"] = "intermediate_size"
_OF_THE_ARCHITECTURE = {"hidden_act": "silu", "attention_bias": False}
"""What llama.cpp computes whatever a file says: it has no entries for them."""
ROPE_SECTIONS = [11, 11, 10]
"""What transformers and llama.cpp's converter take where nothing is given; of text all three count the same."""
THETA = 10_000.0
"""What llama.cpp takes for the frequencies where nothing is given: older files of Llama and Mistral say nothing."""
_IDS = {"eos": "eos_token_id", "bos": "bos_token_id", "padding": "pad_token_id"}
_READ = {
    "attention.layer_norm_rms_epsilon",
    "attention.recurrent_layers",
    "attention.value_length",
    "block_count",
    "feed_forward_length",
    "full_attention_interval",
    "nextn_predict_layers",
    "rope.dimension_count",
    "rope.dimension_sections",
    "attention.sliding_window",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scale_linear",
    "ssm.inner_size",
    "vocab_size",
    *_SIZES,
}
_YARN = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_ext_factor": "extrapolation_factor",
    "yarn_attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


class MetadataError(Exception):
    """An entry is missing, of the wrong kind, or says what no model of this architecture is."""


def text_config(metadata: Mapping[str, Any], vocabulary: int, has_head: bool) -> dict[str, Any]:
    """The configuration; `vocabulary` is the number of stored embeddings, `has_head` whether an lm_head is stored.

    Raises:
        MetadataError: see there.
    """
    model_type, class_name = HYBRIDS[metadata["general.architecture"]]
    config: dict[str, Any] = {"architectures": [class_name], "model_type": model_type}
    sizes = _SIZES if "moe" in model_type else _DENSE_SIZES
    config |= {theirs: whole_number(metadata, key) for key, theirs in sizes.items()}
    config["num_hidden_layers"] = whole_number(metadata, "block_count") - whole_number(
        metadata, "nextn_predict_layers", 0
    )
    if not 0 < config["num_hidden_layers"] <= 4096:
        raise MetadataError(f"the entries count {config['num_hidden_layers']} layers, which no model has")
    config["layer_types"] = _layer_types(metadata, config["num_hidden_layers"])
    values, heads = whole_number(metadata, "ssm.inner_size"), config["linear_num_value_heads"]
    if values % heads or heads % config["linear_num_key_heads"]:
        raise MetadataError(f"ssm.inner_size is {values}, of {heads} value and {config['linear_num_key_heads']} keys")
    config["linear_value_head_dim"] = values // heads
    config["rms_norm_eps"] = number(metadata, "attention.layer_norm_rms_epsilon")
    config["vocab_size"] = vocabulary
    config["tie_word_embeddings"] = not has_head
    config["rope_parameters"] = _rope(metadata, config["head_dim"])
    if whole_number(metadata, "attention.value_length", config["head_dim"]) != config["head_dim"]:
        raise MetadataError("attention.value_length is not attention.key_length, which this model does not have")
    return config | token_ids(metadata) | _OF_THE_ARCHITECTURE


def token_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    """The ids of special tokens, under the names of config.json."""
    given = {theirs: metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind, theirs in _IDS.items()}
    return {name: value for name, value in given.items() if type(value) is int}


def unread(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of the architecture that the configuration above does not hold, by name without the architecture's."""
    prefix = f"{metadata.get('general.architecture')}."
    own = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return {key: value for key, value in own.items() if key not in _READ}


def _entry(metadata: Mapping[str, Any], key: str) -> Any:
    return metadata.get(f"{metadata.get('general.architecture')}.{key}")


def whole_number(metadata: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    value = _entry(metadata, key)
    if value is None and otherwise is not None:
        return otherwise
    if value is None:
        raise MetadataError(f"{key} is missing")
    if type(value) is not int or not 0 <= value < 2**31 or (value == 0 and otherwise is None):
        raise MetadataError(f"{key} is {str(value)[:40]}, a whole number is needed")
    return value


def number(metadata: Mapping[str, Any], key: str, otherwise: float | None = None) -> float:
    value = _entry(metadata, key)
    if value is None and otherwise is not None:
        return otherwise
    if value is None:
        raise MetadataError(f"{key} is missing")
    if type(value) not in (int, float):
        raise MetadataError(f"{key} is {str(value)[:40]}, a number is needed")
    return shortest(float(value))


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32."""
    try:
        single = struct.pack("<f", value)
        return next(one for digits in range(1, 10) if struct.pack("<f", one := float(f"{value:.{digits}g}")) == single)
    except (OverflowError, StopIteration):
        return value


def _layer_types(metadata: Mapping[str, Any], layers: int) -> list[str]:
    recurrent = _entry(metadata, "attention.recurrent_layers")
    if recurrent is None:
        interval = whole_number(metadata, "full_attention_interval", 4)
        if not interval:
            raise MetadataError("full_attention_interval is 0, a whole number is needed")
        recurrent = [bool((layer + 1) % interval) for layer in range(layers)]
    if not isinstance(recurrent, list) or len(recurrent) < layers or not all(type(one) is bool for one in recurrent):
        raise MetadataError("attention.recurrent_layers does not say of every layer whether it is one")
    return ["linear_attention" if one else "full_attention" for one in recurrent[:layers]]


def _rope(metadata: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    rotated = whole_number(metadata, "rope.dimension_count")
    rope = scaled_rope(metadata) | {"partial_rotary_factor": rotated / head_dim}
    sections = _entry(metadata, "rope.dimension_sections")
    if isinstance(sections, list) and sections[: len(ROPE_SECTIONS)] != ROPE_SECTIONS:
        rope["mrope_section"] = sections[:3]
    return rope


def scaled_rope(metadata: Mapping[str, Any], theta: float | None = None) -> dict[str, Any]:
    """The frequencies of the rotary embedding and how they are scaled; `theta` is the base where no entry gives it.

    Raises:
        MetadataError: an entry is missing or of the wrong kind.
    """
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": number(metadata, "rope.freq_base", theta)}
    factor = _entry(metadata, "rope.scaling.factor")
    if factor is None:
        factor = _entry(metadata, "rope.scale_linear")
    kind = _entry(metadata, "rope.scaling.type")
    if kind is None:  # llama.cpp's loader takes "linear", and a factor of 0 as none
        kind = "none" if factor in (None, 0, 1) else "linear"
    if kind != "none":
        rope["rope_type"] = str(kind)
        given = {theirs: _entry(metadata, f"rope.scaling.{key}") for key, theirs in _YARN.items()} | {"factor": factor}
        rope |= {key: shortest(float(value)) for key, value in given.items() if isinstance(value, int | float)}
    return rope
