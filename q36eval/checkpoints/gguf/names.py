"""Which weights of the model a tensor of a `qwen35moe` or `qwen35` GGUF holds.

Source: `gguf-py/gguf/tensor_mapping.py` and `conversion/qwen.py` of llama.cpp; what its loader reads is in
`src/models/qwen35moe.cpp` and `qwen35.cpp`. A test runs that converter and finds every tensor here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from q36eval.checkpoints.gguf.entries import MINUS_EXP, PLUS_ONE, GgufEntry, Heads

HYBRIDS = {
    "qwen35moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "qwen35": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
}
"""By `general.architecture`, transformers' `model_type` and class."""
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(\w+(?:\.\w+)?)")
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ANY = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
FULL = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
LINEAR = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_BARE = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
EXPERTS = {
    "ffn_gate_exps": ("gate",),
    "ffn_up_exps": ("up",),
    "ffn_down_exps": ("down",),
    "ffn_gate_up_exps": ("gate", "up"),
}
_MTP = {
    "nextn.eh_proj": "fc",
    "nextn.enorm": "pre_fc_norm_embedding",
    "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.shared_head_head": "shared_head",
}
PARTS = {"weight": "weight", "scale": "weight_scale_2", "input_scale": "gguf_input_scale"}
"""By the end of a stored name: NVFP4 that was repacked keeps the scale of the whole tensor beside it."""
LAYER, MTP_LAYER = "model.layers.", "mtp.layers."


@dataclass(frozen=True)
class Sizes:
    """What names depend on: the layers and which of them are full attention, all blocks, and heads."""

    full: tuple[bool, ...]
    blocks: int
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    query_rows: int
    cache_rows: int

    @classmethod
    def of(cls, config: Mapping[str, Any], blocks: int) -> "Sizes":
        """Those of a text model's configuration; `blocks` counts its layers and those of a multi-token head."""
        return cls(
            full=tuple(kind == "full_attention" for kind in config["layer_types"]),
            blocks=blocks,
            key_heads=config["linear_num_key_heads"],
            value_heads=config["linear_num_value_heads"],
            key_width=config["linear_key_head_dim"],
            value_width=config["linear_value_head_dim"],
            query_rows=2 * config["num_attention_heads"] * config["head_dim"],
            cache_rows=config["num_key_value_heads"] * config["head_dim"],
        )

    def heads(self, size: int) -> Heads | None:
        """How value heads of so many rows or columns lie; None where each key head has one, and nothing is tiled."""
        each = self.value_heads // self.key_heads
        return None if each == 1 else (self.key_heads, each, size)


class NoPlaceError(Exception):
    """A tensor that no converter writes for this architecture, or of sizes that the configuration does not have."""


def place(entry: GgufEntry, sizes: Sizes) -> Iterator[tuple[str, GgufEntry]]:
    """The weights that a stored tensor holds, by canonical name, with how each is read; experts one by one.

    Raises:
        NoPlaceError: there is no such weight, or it cannot be taken apart.
    """
    stem, _, part = entry.name.rpartition(".")
    block = _BLOCK.fullmatch(stem if part in PARTS else entry.name)
    if block is None:
        if stem not in _TOP or part not in ("weight", "scale"):
            raise NoPlaceError("no converter writes it for this architecture")
        yield f"{_TOP[stem]}.{PARTS[part]}", _norm(entry, stem)
        return
    number, what = int(block[1]), block[2]
    if number >= sizes.blocks:
        raise NoPlaceError(f"there are {sizes.blocks} blocks")
    is_mtp = number >= len(sizes.full)
    if is_mtp and what in _MTP:
        yield f"mtp.{_MTP[what]}.{PARTS.get(part, part)}", _norm(entry, what)
        return
    layer = f"{MTP_LAYER}{number - len(sizes.full)}" if is_mtp else f"{LAYER}{number}"
    yield from _of_layer(entry, layer, what, PARTS.get(part, ""), is_mtp or sizes.full[number], sizes)


def _norm(entry: GgufEntry, stem: str) -> GgufEntry:
    """Norms multiply by 1 + w, but for that of linear attention."""
    return replace(entry, stored_as=PLUS_ONE) if stem.endswith("norm") and stem != "ssm_norm" else entry


def _of_layer(
    entry: GgufEntry, layer: str, what: str, part: str, full: bool, sizes: Sizes
) -> Iterator[tuple[str, GgufEntry]]:
    if what in _BARE and not full:
        stored_as = MINUS_EXP if what == "ssm_a" else ""
        yield f"{layer}.{_BARE[what]}", _tiled(replace(entry, stored_as=stored_as), sizes.heads(1))
    elif not part:
        raise NoPlaceError("no converter writes it for this architecture")
    elif what in EXPERTS:
        yield from experts_of(entry, f"{layer}.mlp.experts", EXPERTS[what], part)
    elif full and what == "attn_qkv" and part == "weight":
        yield from _fused_attention(entry, f"{layer}.self_attn", sizes)
    else:
        known = ANY | (FULL if full else LINEAR)
        if what not in known:
            raise NoPlaceError("no converter writes it for a layer of that kind")
        if part != "weight":  # the scale of the whole, whose rows are one number
            yield f"{layer}.{known[what]}.{part}", entry
            return
        placed = _norm(entry, what) if full or what in ANY else _linear(entry, what, sizes)
        if what.startswith("ffn_gate_inp") and len(entry.shape) == 1:
            placed = replace(placed, shape=(1, *entry.shape))
        yield f"{layer}.{known[what]}.{part}", placed


def _linear(entry: GgufEntry, what: str, sizes: Sizes) -> GgufEntry:
    """A weight of linear attention, of which the value heads lie tiled."""
    rows = {"attn_gate": sizes.value_width, "ssm_alpha": 1, "ssm_beta": 1}
    if what in rows:
        return _tiled(entry, sizes.heads(rows[what]))
    if what in ("attn_qkv", "ssm_conv1d"):
        placed = _tiled(entry, sizes.heads(sizes.value_width), 2 * sizes.key_heads * sizes.key_width)
        is_flat = what == "ssm_conv1d" and len(entry.shape) == 2
        return replace(placed, shape=(entry.shape[0], 1, entry.shape[1])) if is_flat else placed
    heads = sizes.heads(sizes.value_width)
    if what != "ssm_out" or heads is None:
        return entry
    if len(entry.shape) != 2 or entry.shape[1] != heads[0] * heads[1] * heads[2]:
        raise NoPlaceError(f"its shape {list(entry.shape)} is not that of the declared value heads")
    return replace(entry, column_heads=heads)


def _tiled(entry: GgufEntry, heads: Heads | None, before: int = 0) -> GgufEntry:
    if heads is None:
        return entry
    if entry.shape[0] - before != heads[0] * heads[1] * heads[2]:
        raise NoPlaceError(f"its shape {list(entry.shape)} is not that of the declared value heads")
    return replace(entry, row_heads=heads, rows_before=before)


def experts_of(
    entry: GgufEntry, module: str, projections: tuple[str, ...], part: str
) -> Iterator[tuple[str, GgufEntry]]:
    """All experts of a layer lie in one tensor; gate and up may, the one above the other.

    llama.cpp writes no last size of 1: a layer's only expert is a matrix.
    """
    if part == "weight" and len(entry.shape) == 2:
        entry = replace(entry, shape=(1, *entry.shape))
    if part == "weight" and (len(entry.shape) != 3 or entry.shape[1] % len(projections)):
        raise NoPlaceError(f"its shape {list(entry.shape)} is not that of experts")
    for number in range(entry.shape[0]):
        expert = entry.row(number)
        size = (expert.shape[0] if expert.shape else 0) // len(projections)
        for position, projection in enumerate(projections):
            cut = expert.rows(position * size, (position + 1) * size) if len(projections) > 1 and size else expert
            name = f"{entry.name}[{number}]"
            yield f"{module}.{number}.{projection}_proj.{part}", replace(cut, name=name)  # type: ignore[misc]


def _fused_attention(entry: GgufEntry, module: str, sizes: Sizes) -> Iterator[tuple[str, GgufEntry]]:
    """Query, key and value of full attention, the one above the other (`--fuse-qkv`)."""
    rows = (sizes.query_rows, sizes.cache_rows, sizes.cache_rows)
    if entry.shape[0] != sum(rows):
        raise NoPlaceError(f"its shape {list(entry.shape)} is not that of the declared attention heads")
    begin = 0
    for what, size in zip("qkv", rows, strict=True):
        yield f"{module}.{what}_proj.weight", entry.rows(begin, begin + size)  # type: ignore[misc]
        begin += size
