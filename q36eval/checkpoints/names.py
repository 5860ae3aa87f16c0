"""What stored tensor names mean: module and part, class of tensor, and what is no part of the text model."""

import re

QUANTIZED_PARTS = (
    "weight_packed",
    "weight_scale",
    "weight_scale_2",
    "weight_scale_inv",
    "weight_global_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "input_global_scale",
    "input_scale",
    "input_zero_point",
    "activation_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
)
"""Names under which quantized formats store the parts of one weight, beside plain `weight`."""

_FUSED = re.compile(r"(?P<module>(?P<experts>.*\.mlp\.experts)\.(?P<which>gate_up|down)_proj)(?P<suffix>_\w+)?")
_FUSED_PARTS = {
    "": "weight",
    "_scale_inv": "weight_scale_inv",
    "_activation_scale": "activation_scale",
    "_blocks": "weight_packed",
    "_scales": "weight_scale",
}
"""What transformers appends to the name of a fused expert parameter where its per-expert files have `.weight…`; the
last two are GPT-OSS's MXFP4."""

_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)\.(?P<projection>gate|up|down)_proj\.weight")

KV_CACHE_SCALES = "KV-cache scales"
DRAFT_HEAD = "multi-token prediction"
_LEFT_OUT = (
    ("vision tower", re.compile(r"^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector)\.")),
    (DRAFT_HEAD, re.compile(r"^(model\.|language_model\.)?mtp\.")),
    ("GGUF input scales", re.compile(r"\.gguf_input_scale$")),
    (KV_CACHE_SCALES, re.compile(r"\.self_attn\.([kv]_proj\.)?[kv]_scale$")),
)
_WRAPPERS = ("", "model.language_model.", "language_model.model.", "language_model.")
_PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."), ("language_model.", ""))
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Modules that vLLM holds as one (vllm/model_executor/models/qwen3_5.py, `stacked_params_mapping`), the first first."""
FUSED_OF = {part: fused for fused, parts in FUSED.items() for part in parts}
_CLASSES = (
    ("lm_head", re.compile(r"^(lm_head|embed_out)\.")),
    ("embeddings", re.compile(r"(^|\.)(embed_tokens|embed_in|wte|wpe)\.")),
    ("routed experts", re.compile(r"\.experts\.|\.block_sparse_moe\.(input|output)_linear\.")),
    ("shared expert", re.compile(r"\.shared_(experts?|mlp)\.")),
    ("router gates", re.compile(r"\.(gate|router|shared_expert_gate)\.|\.e_score_correction_bias$")),
    ("norms", re.compile(r"(norm|\bln_\w+)\.(weight|bias)$")),
    ("self-attention", re.compile(r"\.(self_attn|attn|attention)\.")),
    ("linear attention", re.compile(r"\.linear_attn\.")),
    ("state-space layers", re.compile(r"\.mamba\.")),
    ("convolutions", re.compile(r"\.conv\.")),
    ("dense MLP", re.compile(r"\.(mlp|feed_forward)\.")),
)


def left_out_as(stored: str) -> str | None:
    """Why a stored tensor is no part of the text model's weights, or None when it is part of them."""
    return next((reason for reason, pattern in _LEFT_OUT if pattern.search(stored)), None)


def canonical(stored: str) -> str:
    """The name in the text-only layout (`model.layers.…`, `lm_head.…`) of a name in either published layout."""
    for prefix, replacement in _PREFIXES:
        if stored.startswith(prefix):
            return replacement + stored.removeprefix(prefix)
    return stored


def aliases(module: str) -> set[str]:
    """Other names that exporters and engines use for a stored module: with the prefix of a multimodal wrapper, relative
    to the text model, and of the module that engines fuse it into."""
    name = canonical(module)
    parent, dot, part = name.rpartition(".")
    names = {name, f"{parent}{dot}{FUSED_OF.get(part, part)}"}
    wrapped = {replacement_of + own.removeprefix("model.") for own in names for replacement_of in _WRAPPERS}
    return names | wrapped


def split_part(name: str) -> tuple[str, str]:
    """(module, part) of a tensor name; part is `weight`, one of `QUANTIZED_PARTS`, or empty for a bare parameter.

    Fused experts count as a module of their own: `….experts.gate_up_proj_scale_inv` is its `weight_scale_inv`.
    """
    fused = _FUSED.fullmatch(name)
    if fused and (fused["suffix"] or "") in _FUSED_PARTS:
        return fused["module"], _FUSED_PARTS[fused["suffix"] or ""]
    module, _, part = name.rpartition(".")
    return (module, part) if part == "weight" or part in QUANTIZED_PARTS else (name, "")


def part_name(module: str, part: str) -> str:
    """The tensor name that `split_part` takes apart into these two."""
    if fused_experts(module) is None:
        return f"{module}.{part}" if part else module
    return module + next(suffix for suffix, known in _FUSED_PARTS.items() if known == part)


def fused_experts(module: str) -> tuple[str, tuple[str, ...]] | None:
    """(module of the experts, projections one above the other) of a fused parameter; None for any other module."""
    match = _FUSED.fullmatch(module)
    if not match or match["suffix"]:
        return None
    return match["experts"], ("gate", "up") if match["which"] == "gate_up" else ("down",)


def fused_place(name: str) -> tuple[str, int, str] | None:
    """(fused parameter, expert, projection) that holds an expert's weight when experts are stored as one tensor."""
    match = _EXPERT.fullmatch(name)
    if not match:
        return None
    fused = "down_proj" if match["projection"] == "down" else "gate_up_proj"
    return f"{match['experts']}.{fused}", int(match["index"]), match["projection"]


def beginnings(name: str) -> list[str]:
    """The name and what it lies below, the longest first: `a.b.c`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def endings(name: str) -> list[str]:
    """The name and what it ends in, the longest first: `a.b.c`, `b.c`, `c`."""
    parts = name.split(".")
    return [".".join(parts[start:]) for start in range(len(parts))]


def tensor_class(name: str) -> str:
    """The class a canonical tensor name belongs to, as recipes speak of them."""
    return next((label for label, pattern in _CLASSES if pattern.search(name)), "other")
