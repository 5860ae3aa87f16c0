"""GGUFs of models whose layers are attention and a feed-forward network: names, settings, what the converter changes.

Source: `gguf-py/gguf/tensor_mapping.py`, `conversion/llama.py`, `qwen.py`, `gemma.py` and `gpt_oss.py` of llama.cpp.
The converter puts the rows of each query and key head of a Llama in another order (`LlamaModel.permute`) and stores
Gemma's norms, which multiply by 1 + w, as 1 + w. Both are undone where a tensor is read. Llama 3's scaling of the
rotary embedding is stored as a factor of each frequency. A test runs that converter and compares every weight.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from q36eval.checkpoints.gguf.entries import PLUS_ONE, GgufEntry
from q36eval.checkpoints.gguf.names import EXPERTS, LAYER, NoPlaceError, experts_of
from q36eval.checkpoints.gguf.settings import THETA, MetadataError, number, scaled_rope, token_ids, whole_number

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_FEED_FORWARD = {
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@dataclass(frozen=True)
class PlainModel:
    """What llama.cpp's converter makes of one architecture of transformers."""

    model_type: str
    class_name: str
    names: Mapping[str, str]
    """Of tensors of a block, without number and part: the module that holds them."""
    settings: Mapping[str, Any]
    """What the architecture fixes and no entry says."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """More entries, whole numbers, and their names in config.json."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Settings that are true where that tensor is stored."""
    permuted: bool = False
    norms_plus_one: bool = False
    biased: tuple[str, ...] = ()
    """Tensors of a block that may have a bias."""
    experts: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)
    """What the architecture fixes of the rotary embedding."""
    local_rope: bool = False
    """Whether layers with a sliding window have frequencies of their own."""


_SILU = {"hidden_act": "silu"}
PLAIN_MODELS = {
    "llama": PlainModel(
        "llama",
        "LlamaForCausalLM",
        _ATTENTION | _FEED_FORWARD,
        _SILU,
        flags={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
        permuted=True,
        biased=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    ),
    "qwen2": PlainModel(
        "qwen2", "Qwen2ForCausalLM", _ATTENTION | _FEED_FORWARD, _SILU, biased=("attn_q", "attn_k", "attn_v")
    ),
    "qwen3": PlainModel("qwen3", "Qwen3ForCausalLM", _ATTENTION | _FEED_FORWARD | _HEAD_NORMS, _SILU),
    "qwen3moe": PlainModel(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _ATTENTION | _HEAD_NORMS | {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"},
        _SILU | {"norm_topk_prob": True},
        sizes={
            "expert_count": "num_experts",
            "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        experts=True,
    ),
    "gemma3": PlainModel(
        "gemma3_text",
        "Gemma3ForCausalLM",
        _ATTENTION
        | _FEED_FORWARD
        | _HEAD_NORMS
        | {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        {"hidden_activation": "gelu_pytorch_tanh"},
        sizes={"attention.sliding_window": "sliding_window"},
        norms_plus_one=True,
        local_rope=True,
    ),
    "gpt-oss": PlainModel(
        "gpt_oss",
        "GptOssForCausalLM",
        _ATTENTION
        | {
            "attn_sinks": "self_attn.sinks",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps": "mlp.experts.gate_proj",
            "ffn_up_exps": "mlp.experts.up_proj",
            "ffn_down_exps": "mlp.experts.down_proj",
        },
        _SILU | {"attention_bias": True},
        sizes={
            "attention.sliding_window": "sliding_window",
            "expert_count": "num_local_experts",
            "expert_used_count": "num_experts_per_tok",
        },
        biased=(
            *("attn_q", "attn_k", "attn_v", "attn_output"),
            *("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"),
        ),
        rope={"truncate": False},
    ),
}
"""By `general.architecture`."""
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(\w+)")
ROPE_FACTORS = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def place_plain(entry: GgufEntry, model: PlainModel, config: Mapping[str, Any]) -> Iterator[tuple[str, GgufEntry]]:
    """The weights that a stored tensor holds, by canonical name, with how each is read; experts one by one.

    Raises:
        NoPlaceError: there is no such weight, or it cannot be taken apart.
    """
    stem, _, part = entry.name.rpartition(".")
    if entry.name == ROPE_FACTORS and model.permuted:  # read with the settings
        return
    block = _BLOCK.fullmatch(stem)
    if block is None:
        if stem not in TOP or part != "weight":
            raise NoPlaceError("no converter writes it for this architecture")
        yield f"{TOP[stem]}.weight", _norm(entry, model)
        return
    layer_number, what = int(block[1]), block[2]
    if layer_number >= config["num_hidden_layers"]:
        raise NoPlaceError(f"there are {config['num_hidden_layers']} blocks")
    layer = f"{LAYER}{layer_number}"
    if model.experts and what in EXPERTS and part == "weight":
        yield from experts_of(entry, f"{layer}.mlp.experts", EXPERTS[what], part)
        return
    if what not in model.names or part not in ("weight", "bias") or (part == "bias" and what not in model.biased):
        raise NoPlaceError("no converter writes it for this architecture")
    if model.permuted and what in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if what == "attn_q" else "num_key_value_heads"]
        if entry.shape[0] % (2 * heads):
            raise NoPlaceError(f"its shape {list(entry.shape)} is not that of {heads} heads")
        entry = replace(entry, row_pairs=heads)
    yield f"{layer}.{model.names[what]}.{part}", _norm(entry, model)


def _norm(entry: GgufEntry, model: PlainModel) -> GgufEntry:
    is_norm = entry.name.endswith("norm.weight")
    return replace(entry, stored_as=PLUS_ONE) if model.norms_plus_one and is_norm else entry


def plain_config(
    metadata: Mapping[str, Any],
    model: PlainModel,
    vocabulary: int,
    stored: Collection[str],
    scaling: Mapping[str, Any],
) -> dict[str, Any]:
    """The configuration; `vocabulary` is the number of stored embeddings, `stored` the names of all tensors, `scaling`
    that of the rotary embedding where no entry says it.

    Raises:
        MetadataError: an entry is missing or of the wrong kind.
    """
    heads = whole_number(metadata, "attention.head_count")
    config: dict[str, Any] = {
        "architectures": [model.class_name],
        "model_type": model.model_type,
        "hidden_size": whole_number(metadata, "embedding_length"),
        "num_hidden_layers": whole_number(metadata, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": whole_number(metadata, "attention.head_count_kv", heads),
        "max_position_embeddings": whole_number(metadata, "context_length"),
        "rms_norm_eps": number(metadata, "attention.layer_norm_rms_epsilon"),
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in stored,
        "rope_parameters": scaled_rope(metadata, THETA) | dict(scaling) | dict(model.rope),
    }
    if model.local_rope:
        local = {"rope_type": "default", "rope_theta": number(metadata, "rope.freq_base_swa", THETA)}
        config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": local}
    config |= {theirs: whole_number(metadata, key) for key, theirs in model.sizes.items()}
    config |= {name: tensor in stored for name, tensor in model.flags.items()}
    config["intermediate_size"] = whole_number(metadata, "feed_forward_length")
    config["head_dim"] = whole_number(metadata, "attention.key_length", config["hidden_size"] // heads)
    return {**config, **token_ids(metadata), **model.settings}


def llama3_scaling(
    metadata: Mapping[str, Any], factors: Sequence[float], candidates: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The settings of which the converter makes these factors: one of the `candidates`, or Llama 3's own.

    Raises:
        MetadataError: none of them gives these factors.
    """
    width = 2 * len(factors)
    theta = number(metadata, "rope.freq_base", THETA)
    own = _LLAMA3 | {"factor": max(factors, default=1.0)}
    for given in (*candidates, own):
        scaling = {name: given.get(name) for name in own}
        if not all(isinstance(value, int | float) and value > 0 for value in scaling.values()):
            continue
        made = [_llama3_factor(theta ** (-2 * at / width), scaling) for at in range(len(factors))]
        if all(math.isclose(one, other, rel_tol=1e-5) for one, other in zip(made, factors, strict=True)):
            return {"rope_type": "llama3", **scaling}
    raise MetadataError(f"{ROPE_FACTORS} holds factors of frequencies that are not Llama 3's")


def _llama3_factor(frequency: float, scaling: Mapping[str, Any]) -> float:
    """By what a frequency is divided (`LlamaModel.generate_extra_tensors`)."""
    low, high, factor = (float(scaling[name]) for name in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = float(scaling["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    if turns > high:
        return 1.0
    if turns < low:
        return factor
    smooth = (turns - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)
