"""GGUFs of models whose layers are attention and a feed-forward network: names, settings, what the converter changes.

Source: `gguf-py/gguf/tensor_mapping.py`, `conversion/llama.py`, `qwen.py` and `gemma.py` of llama.cpp. The converter
puts the rows of each query and key head of a Llama in another order (`LlamaModel.permute`) and stores Gemma's norms,
which multiply by 1 + w, as 1 + w. Both are undone where a tensor is read. transformers' own reader of GGUFs, which a
test compares with, does the same.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from q36eval.checkpoints.gguf.entries import PLUS_ONE, GgufEntry
from q36eval.checkpoints.gguf.names import EXPERTS, LAYER, NoPlaceError, experts_of
from q36eval.checkpoints.gguf.settings import number, token_ids, whole_number

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
    permuted: bool = False
    norms_plus_one: bool = False
    biased: tuple[str, ...] = ()
    """Tensors of a block that may have a bias."""
    experts: bool = False


_SILU = {"hidden_act": "silu"}
PLAIN_MODELS = {
    "llama": PlainModel("llama", "LlamaForCausalLM", _ATTENTION | _FEED_FORWARD, _SILU, permuted=True),
    "qwen2": PlainModel(
        "qwen2", "Qwen2ForCausalLM", _ATTENTION | _FEED_FORWARD, _SILU, biased=("attn_q", "attn_k", "attn_v")
    ),
    "qwen3": PlainModel("qwen3", "Qwen3ForCausalLM", _ATTENTION | _FEED_FORWARD | _HEAD_NORMS, _SILU),
    "qwen3moe": PlainModel(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        _ATTENTION | _HEAD_NORMS | {"ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"},
        _SILU | {"norm_topk_prob": True},
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
        norms_plus_one=True,
    ),
}
"""By `general.architecture`."""
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(\w+)")


def place_plain(entry: GgufEntry, model: PlainModel, config: Mapping[str, Any]) -> Iterator[tuple[str, GgufEntry]]:
    """The weights that a stored tensor holds, by canonical name, with how each is read; experts one by one.

    Raises:
        NoPlaceError: there is no such weight, or it cannot be taken apart.
    """
    stem, _, part = entry.name.rpartition(".")
    block = _BLOCK.fullmatch(stem)
    if block is None:
        if stem not in _TOP or part != "weight":
            raise NoPlaceError("no converter writes it for this architecture")
        yield f"{_TOP[stem]}.weight", _norm(entry, model)
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


def plain_config(metadata: Mapping[str, Any], model: PlainModel, vocabulary: int, has_head: bool) -> dict[str, Any]:
    """The configuration; `vocabulary` is the number of stored embeddings, `has_head` whether an lm_head is stored.

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
        "tie_word_embeddings": not has_head,
        "rope_parameters": {"rope_type": "default", "rope_theta": number(metadata, "rope.freq_base")},
    }
    config["intermediate_size"] = whole_number(metadata, "feed_forward_length")
    config["head_dim"] = whole_number(metadata, "attention.key_length", config["hidden_size"] // heads)
    return {**config, **token_ids(metadata), **model.settings}
