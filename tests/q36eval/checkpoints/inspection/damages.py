"""The table of damages: what is wrong, the checkpoint, the change, what an inspection names, and by which rules.

Checkpoints are those of `tiny.write`, golden files of the producers among them, and branches of the sandbox. All are
compared with their reference.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .damage import (
    FP8_CACHE,
    INDEX,
    OWN_FILE,
    WEIGHTS,
    Damage,
    Tensors,
    bits,
    clipping_cache,
    config,
    edit,
    edit_header,
    edit_json,
    edit_tensors,
    inputs_twenty_times,
    one,
    quantization,
    rescale,
    twice_as_coarse,
)


@dataclass(frozen=True)
class Case:
    """`rules` are all blocking rules that name the subject; with `at_least` there may be others."""

    what: str
    checkpoint: str
    damage: Damage
    subject: str
    rules: str
    at_least: bool = False
    quick: bool = True

    @property
    def id(self) -> str:
        """Such as `ct-nvfp4: two experts exchanged`."""
        return f"{self.checkpoint}: {self.what}"


LINEAR, FULL, LAST = "model.layers.0.linear_attn", "model.layers.1.self_attn", "model.layers.2.linear_attn"
MLP = "model.layers.1.mlp"
EXPERT, TWIN, ABOVE = f"{MLP}.experts.3", f"{MLP}.experts.2", "model.layers.0.mlp.experts.3"
NORM, HEAD, EMBEDDINGS = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
CHANGED, BEYOND = "unquantized-differs", "beyond-scheme"
Change = Callable[[Tensor], Tensor]


def parts_of(tensors: Tensors, name: str) -> list[str]:
    """A tensor, or all parts of a module."""
    return [stored for stored in tensors if stored == name or stored.startswith(f"{name}.")]


def exchanged(first: str, second: str) -> Damage:
    def swap(tensors: Tensors) -> None:
        for name in parts_of(tensors, first):
            twin = second + name.removeprefix(first)
            tensors[name], tensors[twin] = tensors[twin], tensors[name]

    return edit(swap)


def copied(source: str, target: str) -> Damage:
    def copy(tensors: Tensors) -> None:
        for name in parts_of(tensors, source):
            tensors[target + name.removeprefix(source)] = tensors[name].clone()

    return edit(copy)


def in_place(change: Callable[[Tensor], object]) -> Change:
    """A copy of the tensor, changed in place."""

    def changed(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        change(copy)
        return copy

    return changed


def flipped(mask: int, place: int = 0) -> Change:
    return in_place(lambda tensor: bits(tensor).view(-1)[place : place + 1].bitwise_xor_(mask))


def value(number: float) -> Change:
    return in_place(lambda tensor: tensor.view(-1)[1:2].fill_(number))


def rows(*order: int) -> Change:
    return lambda tensor: torch.cat([tensor[list(order)], tensor[len(order) :]])


def lost(prefix: str) -> Damage:
    return edit(lambda tensors: [tensors.pop(name) for name in [*tensors] if name.startswith(prefix)])


def added(**tensors: Tensor) -> Damage:
    return edit(lambda stored: stored.update(tensors))


zero, negative = torch.zeros_like, torch.neg
NAN, INF = float("nan"), float("inf")
UNQUANTIZED = [
    ("decay rates of the opposite sign", one(f"{LINEAR}.A_log", negative), f"{LINEAR}.A_log", CHANGED),
    ("decay rates and step biases exchanged", exchanged(f"{LINEAR}.A_log", f"{LINEAR}.dt_bias"), f"{LINEAR}.dt_bias",
     CHANGED),
    ("convolution backwards in time", one(f"{LINEAR}.conv1d.weight", lambda t: t.flip(-1)), f"{LINEAR}.conv1d.weight",
     CHANGED),
    ("convolution without its middle axis", one(f"{LINEAR}.conv1d.weight", lambda t: t[:, 0]),
     f"{LINEAR}.conv1d.weight", "shape"),
    ("a square projection transposed", one(f"{LINEAR}.out_proj.weight", lambda t: t.T), f"{LINEAR}.out_proj.weight",
     CHANGED),
    ("two layers of linear attention exchanged", exchanged(LINEAR, LAST), f"{LINEAR}.in_proj_z.weight", CHANGED),
    ("linear attention rounded to FP8 and stored in BF16",
     one(f"{LINEAR}.in_proj_z.weight", lambda t: t.to(torch.float8_e4m3fn).to(t.dtype)), f"{LINEAR}.in_proj_z.weight",
     CHANGED),
    ("a router gate all zero", one(f"{MLP}.gate.weight", zero), f"{MLP}.gate.weight", CHANGED),
    ("the norms of keys and queries exchanged", exchanged(f"{FULL}.q_norm", f"{FULL}.k_norm"), f"{FULL}.k_norm.weight",
     CHANGED),
    ("one exponent's highest bit of a norm flipped", one(NORM, flipped(0x4000)), NORM, f"{BEYOND} {CHANGED}"),
    ("the last bit of one embedding flipped", one(EMBEDDINGS, flipped(1, 77)), EMBEDDINGS, CHANGED),
    ("embeddings in the place of the head", copied("model.embed_tokens", "lm_head"), HEAD, CHANGED),
    ("the head one row short", one(HEAD, lambda t: t[:-1]), HEAD, "shape"),
    ("one value NaN", one(HEAD, value(NAN)), HEAD, f"{BEYOND} non-finite {CHANGED}"),
    ("BF16 read as F16", one(f"{LINEAR}.in_proj_qkv.weight", lambda t: t.view(torch.float16)),
     f"{LINEAR}.in_proj_qkv.weight", CHANGED),
    ("a tensor lost", lost(f"{LINEAR}.dt_bias"), f"{LINEAR}.dt_bias", "missing-tensor"),
    ("a layer lost", lost("model.layers.2."), "model.layers.2.mlp.gate.weight", "missing-tensor"),
    ("a tensor that the model does not have", added(**{"model.layers.0.extra.weight": torch.ones(2)}),
     "model.layers.0.extra.weight", "unexpected-tensor"),
]  # fmt: skip


def left_out(folder: Path) -> None:
    """An expert's projection as in the reference, and on the ignore list."""
    original, module = load_file(folder.parent / "reference" / WEIGHTS), f"{EXPERT}.up_proj"

    def restore(tensors: Tensors) -> None:
        for name in parts_of(tensors, module):
            del tensors[name]
        tensors[f"{module}.weight"] = original[f"{module}.weight"]

    edit_tensors(folder, restore)
    edit_json(folder, "config.json", lambda document: document["quantization_config"]["ignore"].append(module))


def _all_poisoned(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".experts." in name and name.endswith("weight_global_scale")]:
        tensors[name] = tensors[name] / 1.1


INPUT, KEYS = f"{EXPERT}.up_proj.input_global_scale", f"{FULL}.k_scale"
CACHE_OF_LINEAR, TWICE = "model.layers.0.self_attn.k_scale", f"{FULL}.k_proj.k_scale"
OUTLIER = f"{BEYOND} error-outlier"
QUANTIZED = [
    ("keys and values exchanged", exchanged(f"{FULL}.k_proj", f"{FULL}.v_proj"), f"{FULL}.v_proj.weight", BEYOND),
    ("two experts exchanged", exchanged(EXPERT, TWIN), f"{EXPERT}.down_proj.weight", OUTLIER),
    ("scales of the neighbouring layer",
     copied(f"{ABOVE}.down_proj.weight_scale", f"{EXPERT}.down_proj.weight_scale"), f"{EXPERT}.down_proj.weight",
     OUTLIER),
    ("one expert all zero", one(f"{EXPERT}.down_proj.weight_packed", zero), f"{EXPERT}.down_proj.weight", OUTLIER),
    ("every expert a tenth too large", edit(_all_poisoned), f"{EXPERT}.up_proj.weight", BEYOND),
    ("a global scale other than the fused module's", edit(rescale(f"{EXPERT}.up_proj", 0.5)), f"{EXPERT}.gate_up_proj",
     "fused-global-scales"),
    ("one expert's projection left unquantized", left_out, f"{EXPERT}.up_proj.weight", "expert-left-out"),
    ("half a fused module unquantized", left_out, f"{EXPERT}.gate_up_proj", "fused-schemes"),
    ("an input scale lost", lost(INPUT), INPUT, "activation-scale"),
    ("an input scale far from all others", one(INPUT, lambda t: t * 1000), INPUT, "activation-scale"),
    ("two input scales", one(INPUT, lambda t: t.repeat(2)), INPUT, "activation-scale"),
    *((f"one scale of the KV cache {number}", one(KEYS, lambda t, number=number: t * number), KEYS, rules)
      for number, rules in ((NAN, "kv-cache-scale non-finite"), (INF, "kv-cache-scale non-finite"),
                            (-1, "kv-cache-scale"), (0, "kv-cache-scale"), (1e9, "kv-cache-scale"))),
    ("scales of the KV cache for other heads", one(KEYS, lambda t: t.repeat(3)), KEYS, "kv-cache-scale"),
    ("a scale of the KV cache in linear attention", added(**{CACHE_OF_LINEAR: torch.tensor(1.0)}), CACHE_OF_LINEAR,
     "kv-cache-scale"),
    ("a scale of the KV cache stored twice", added(**{TWICE: torch.tensor(0.02)}), TWICE, "kv-cache-scale"),
]  # fmt: skip


def in_fp8(name: str) -> Damage:
    """Stored in FP8 with a scale, where it is declared to be unquantized."""
    scale = {name.replace("weight", "weight_scale"): torch.ones(1).bfloat16()}
    return edit(lambda t: t.update({name: torch.randn(t[name].shape).to(torch.float8_e4m3fn), **scale}))


MTP = "mtp.fc.weight"
BESIDE = [
    (f"{part}: {what}", damage, subject, rules)
    for part, prefix, name in [
        ("multi-token prediction", "mtp.", MTP),
        ("vision tower", "model.visual.", "model.visual.blocks.0.attn.qkv.weight"),
    ]
    for module in [name.removesuffix(".weight").removeprefix("model.")]
    for what, damage, subject, rules in [
        ("all zero", one(name, zero), name, "shipped-differs"),
        ("one bit flipped", one(name, flipped(1, 9)), name, "shipped-differs"),
        ("one value NaN", one(name, value(NAN)), name, "non-finite shipped-differs"),
        ("transposed", one(name, lambda t: t.T), name, "shipped-differs"),
        ("lost", lost(prefix), part, "shipped-missing"),
        ("one weight lost", lost(name), module, "shipped-incomplete"),
        ("quantized", in_fp8(name), module, "shipped-quantized"),
    ]
]
FUSED, DOWN = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"
FUSED_EXPERTS = [
    ("gate and up of all experts exchanged", one(FUSED, lambda t: torch.cat([t[:, 32:], t[:, :32]], 1)),
     f"{EXPERT}.gate_proj.weight", CHANGED),
    ("experts transposed", one(DOWN, lambda t: t.transpose(1, 2)), f"{EXPERT}.down_proj.weight", "shape"),
    ("one expert of a tensor twice", one(DOWN, in_place(lambda t: t[3].copy_(t[2]))), f"{EXPERT}.down_proj.weight",
     CHANGED),
    ("one value of an expert NaN", one(DOWN, in_place(lambda t: t[3, 0, :1].fill_(NAN))), f"{EXPERT}.down_proj.weight",
     f"{BEYOND} {CHANGED}"),
    ("one expert too few", one(DOWN, lambda t: t[:-1]), f"{EXPERT}.down_proj.weight", "missing-tensor"),
    ("one expert too many", one(FUSED, lambda t: torch.cat([t, t[:1]])), f"{MLP}.experts.4.gate_proj.weight",
     "unexpected-tensor"),
]  # fmt: skip


def weights_declared(**changes: Any) -> Damage:
    def change(document: dict[str, Any]) -> None:
        document["quantization_config"]["config_groups"]["group_0"]["weights"].update(changes)

    return lambda folder: edit_json(folder, "config.json", change)


def group_declared(**changes: Any) -> Damage:
    return lambda folder: edit_json(
        folder,
        "config.json",
        lambda document: document["quantization_config"]["config_groups"]["group_0"].update(changes),
    )


def without(key: str) -> Damage:
    return lambda folder: edit_json(folder, "config.json", lambda document: document.pop(key))


def nested(**outside: Any) -> Damage:
    """As the whole model's configuration holds the text model's, with entries outside of that."""

    def change(document: dict[str, Any]) -> None:
        text = {key: document.pop(key) for key in list(document) if key not in ("architectures", "quantization_config")}
        document.update(
            text_config=text, model_type="qwen3_5_moe", architectures=["Qwen3_5MoeForConditionalGeneration"]
        )
        document.update(outside)

    return lambda folder: edit_json(folder, "config.json", change)


def quantized_twice(folder: Path) -> None:
    nested()(folder)
    inner = {"quant_method": "fp8"}
    edit_json(folder, "config.json", lambda document: document["text_config"].update(quantization_config=inner))


def head_declared(folder: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["quantization_config"]["ignore"].remove("lm_head")
        document["quantization_config"]["config_groups"]["group_0"]["targets"].append("lm_head")

    edit_json(folder, "config.json", change)


def dead_group(folder: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        groups = document["quantization_config"]["config_groups"]
        groups["group_9"] = {**groups["group_0"], "targets": ["re:.*nothing.*"]}

    edit_json(folder, "config.json", change)


COMPUTED, OTHERWISE = "computation-differs", "engines-read-otherwise"
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
MEASURED = {
    "norm_topk_prob": True,
    "attn_output_gate": True,
    "is_causal": True,
    "qkv_bias": None,
    "layer_scale": False,
    "dual_chunk_attention_config": None,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
    "rope_parameters": ROPE | {"type": "default"},
    "rope_theta": 1e4,
}
"""Entries as transformers reads them whatever they are: no damage."""
OF_ITSELF = [
    # a null counts as false to vLLM where it is listed
    *((f"{key} is {json.dumps(given)}", config(**{key: given}), OTHERWISE)
      for key, values in {"norm_topk_prob": (False, None), "attn_output_gate": (False, None), "is_causal": (False,),
                          "qkv_bias": (True,), "layer_scale": (True,), "mlp_only_layers": ([0],),
                          "decoder_sparse_step": (2,), "dual_chunk_attention_config": ({"chunk_size": 64},)}.items()
      for given in values),
    *((f"rotary embedding: {json.dumps(entries)}", config(**entries), rules)
      for entries, rules in (({"rope_theta": 5.0}, "rope-contradicts"),
                             ({"rope_scaling": {"rope_type": "default", "rope_theta": 5.0}}, "rope-contradicts"),
                             ({"rope_parameters": ROPE | {"type": "dynamic"}}, f"rope-contradicts {COMPUTED}"),
                             ({"rope_scaling": {"type": "yarn"}}, f"rope-contradicts {COMPUTED}"))),
    ("another end of answers than generation_config's", config(eos_token_id=2), "ends-contradict"),
    ("another end of answers outside the text model's entries", nested(eos_token_id=5), "ends-contradict"),
    ("another quantization outside the text model's entries", quantized_twice,
     "declared-twice"),
]  # fmt: skip
"""Entries of config.json that contradict each other or what is measured, whatever the reference's are."""
CONFIGURATION = [
    ("another number of experts", config(num_experts_per_tok=1), COMPUTED),
    ("a number of experts left out, for which transformers takes 8", without("num_experts_per_tok"), COMPUTED),
    ("another base of the rotary embedding", config(rope_parameters=ROPE | {"rope_theta": 1e6}), COMPUTED),
    ("another epsilon of the norms", config(rms_norm_eps=1e-5), COMPUTED),
    ("bias in attention", config(attention_bias=True), COMPUTED),
    ("another dtype to compute in", config(dtype="float16"), COMPUTED),
    ("no architecture", config(architectures=None), "architecture"),
    ("another model's type", config(model_type="llama"), "architecture"),
    ("a nested model's type with flat entries",
     config(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe"), "architecture"),
    ("fewer layers than kinds of layers", config(num_hidden_layers=2), f"layer-types {COMPUTED}"),
    ("no size of experts", without("moe_intermediate_size"), f"sizes {COMPUTED}"),
    ("a size below zero", config(hidden_size=-64), "malformed-config"),
    ("nothing at all", lambda folder: (folder / "config.json").write_text("{}"), "empty-file"),
    ("an ignore list that matches nothing", quantization(ignore=["re:.*nothing.*"]), "ignore-list-matches-nothing"),
    ("a malformed pattern", quantization(ignore=["re:(head"]), "quantization-not-read"),
    ("a KV cache that is not emulated", quantization(kv_cache_scheme=FP8_CACHE | {"num_bits": 4, "type": "int"}),
     "kv-cache"),
]  # fmt: skip
DECLARED = [
    ("kinds of two layers exchanged", config(layer_types=["full_attention", "linear_attention", "linear_attention"]),
     "model.layers.0", "layer-types"),
    ("groups of other sizes declared", weights_declared(group_size=32), f"{EXPERT}.up_proj.weight",
     "declared-against-stored undecodable"),
    ("other bits declared", weights_declared(num_bits=8), f"{EXPERT}.up_proj.weight", "declared-against-stored"),
    ("no groups of weights", quantization(config_groups={}), f"{EXPERT}.up_proj", "not-as-declared"),
    ("inputs declared unquantized", group_declared(input_activations=None), INPUT, "activation-scale"),
    ("the head declared quantized", head_declared, "lm_head", "not-as-declared"),
    ("a group that means nothing", dead_group, "group_9", "declared-scheme-absent"),
    ("a head declared tied", config(tie_word_embeddings=True), HEAD, "tied-head unexpected-tensor"),
    ("a smaller vocabulary declared", config(vocab_size=63), HEAD, "shape"),
    ("fewer experts declared", config(num_experts=3), f"{MLP}.experts.3.up_proj.weight", "unexpected-tensor"),
    ("more experts declared", config(num_experts=5), f"{MLP}.experts.4.up_proj.weight", "missing-tensor"),
]  # fmt: skip
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def sharded(change: Callable[[Path, dict[str, str]], object]) -> Damage:
    """The checkpoint in two files with an index, which `change` may damage before it is written."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        names = sorted(tensors)
        files = {name: ONE if n < len(names) // 2 else TWO for n, name in enumerate(names)}
        for file in (ONE, TWO):
            save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
        (folder / WEIGHTS).unlink()
        change(folder, files)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))

    return damage


def _without_index(folder: Path) -> None:
    sharded(lambda folder, files: None)(folder)
    (folder / INDEX).unlink()


def _overlap(header: dict[str, Any]) -> None:
    first, second = [name for name in header if name.endswith("input_layernorm.weight")][:2]
    header[second]["data_offsets"] = header[first]["data_offsets"]


def _twice_in_the_index(folder: Path) -> None:
    names = list(load_file(folder / WEIGHTS))
    entries = [f'"{names[0]}": "other.safetensors"', *(f'"{name}": "{WEIGHTS}"' for name in names)]
    (folder / INDEX).write_text(f'{{"weight_map": {{{", ".join(entries)}}}}}')


def _stored_twice(folder: Path) -> None:
    save_file({HEAD: load_file(folder / WEIGHTS)[HEAD]}, folder / "model_mtp.safetensors")


TEMPLATE = "chat_template.jinja"
FILES = [
    ("a file cut short", sharded(lambda folder, files: (folder / TWO).write_bytes((folder / TWO).read_bytes()[:-100])),
     TWO, "unreadable-file"),
    ("a file of no bytes", sharded(lambda folder, files: (folder / TWO).write_bytes(b"")), TWO, "unreadable-file"),
    ("a file missing", sharded(lambda folder, files: (folder / ONE).unlink()), ONE, "missing-file"),
    ("an index that names a lost tensor", sharded(lambda folder, files: files.update({"model.old.weight": ONE})),
     "model.old.weight", "index"),
    ("an index that leaves a tensor out", sharded(lambda folder, files: files.pop(HEAD)), HEAD, "index"),
    ("an index that puts a tensor into the other file", sharded(lambda folder, files: files.update({HEAD: TWO})), HEAD,
     "index"),
    ("an index that leads out of the folder",
     sharded(lambda folder, files: files.update({HEAD: "../reference/model.safetensors"})), INDEX, "index"),
    ("an index that names a tensor twice", _twice_in_the_index, INDEX, "unreadable-file"),
    ("files without their index", _without_index, WEIGHTS, "empty-file missing-file"),
    ("a file that belongs to nothing",
     sharded(lambda folder, files: (folder / "x.safetensors").write_bytes((folder / ONE).read_bytes())),
     "x.safetensors", "stray-file"),
    ("a tensor in two files", _stored_twice, HEAD, "stored-twice"),
    ("no tensors", lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"{}"), WEIGHTS, "empty-file"),
    ("a header in UTF-16", lambda folder: edit_header(folder, dict, "utf-16"), WEIGHTS, "unreadable-file"),
    ("metadata of a header that are no text",
     lambda folder: edit_header(folder, lambda header: header.update({"__metadata__": {"format": 1}})), WEIGHTS,
     "unreadable-file"),
    ("tensors that overlap", lambda folder: edit_header(folder, _overlap), WEIGHTS, "unreadable-file"),
    ("no chat template", lambda folder: (folder / TEMPLATE).unlink(), TEMPLATE, "chat-template-missing"),
    ("another chat template", lambda folder: (folder / TEMPLATE).write_text("{# [bold] #}"), TEMPLATE,
     "chat-template-differs"),
    ("another generation_config.json",
     lambda folder: edit_json(folder, "generation_config.json", lambda document: document.update(eos_token_id=[1, 0])),
     "generation_config.json", "generation-config-differs"),
]  # fmt: skip

# ---- one quantized weight of every format, as the producers wrote it

NVFP4 = ("ct-nvfp4", "ct-mixed", "modelopt-nvfp4", "modelopt-nvfp4-default", "modelopt-nvfp4-w4a16", "modelopt-mixed")
MX = ("ct-mxfp4", "ct-mxfp8", "modelopt-mxfp4", "modelopt-mxfp8")
FP8_TENSOR = ("ct-fp8-block", "ct-fp8-tensor-static", "modelopt-fp8", "modelopt-fp8-block", "modelopt-fp8-default")
FP8 = ("ct-fp8-channel-dynamic", "modelopt-fp8-token", "tf-fp8-per-expert", *FP8_TENSOR)
WORDS = ("ct-awq", "ct-w4a16-asym", "ct-w4a16-group", "ct-w4a16-ordered", "ct-w8a16-channel")
SYMMETRIC = ("autoround-gptq", "autoround-sym")
AWQ = ("autoround-awq", "autoround-own-awq")
AUTOROUND = (*SYMMETRIC, "autoround-asym", *AWQ)
GPTQ = (*SYMMETRIC, "gptq-v1", "gptq-v2", "autoround-asym")
INT8 = ("ct-w8a8-int8",)
ALL = (*NVFP4, *MX, *FP8, *INT8, *WORDS, *GPTQ, *AWQ)
STATIC_INPUTS = ("ct-fp8-tensor-static", "modelopt-fp8", "modelopt-fp8-default", "modelopt-nvfp4",
                 "modelopt-nvfp4-default", "modelopt-mixed", "ct-nvfp4", "ct-mixed")  # fmt: skip
SEVERAL_PER_ROW = (*NVFP4, *MX, *GPTQ, *AWQ, *WORDS[:-1], "tf-fp8-per-expert")
MINE, OTHER = "model.layers.0.mlp.experts.1", "model.layers.0.mlp.experts.0"
Parts = dict[str, Tensor]
PartsChange = Callable[[Parts, Parts], object]
_BIT = {torch.uint8: 0x40, torch.int16: 0x4000, torch.int32: 0x40000000}
_AS_WIDE = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16, torch.float32: torch.int32,
            torch.float8_e4m3fn: torch.uint8, torch.uint8: torch.int8, torch.int32: torch.float32,
            torch.int8: torch.uint8}  # fmt: skip
PARTS = {
    "codes": ("qweight", "weight_packed", "weight"),
    "scale": ("scales", "weight_scale", "weight_scale_inv"),
    "global": ("weight_global_scale", "weight_scale_2"),
    "inputs": ("input_global_scale", "input_scale", "activation_scale"),
    "zeros": ("qzeros", "weight_zero_point"),
    "order": ("g_idx", "weight_g_idx"),
}
"""What the formats call the parts."""


def part_of(kind: str, parts: Parts) -> str:
    return next(part for part in PARTS[kind] if part in parts)


def each(kind: str, change: Callable[[Tensor], object]) -> PartsChange:
    """A part changed in place."""
    return lambda parts, twin: change(parts[part_of(kind, parts)])


def instead(kind: str, change: Change) -> PartsChange:
    """A part replaced."""
    return lambda parts, twin: parts.update({part_of(kind, parts): change(parts[part_of(kind, parts)])})


def erased(parts: Parts, twin: Parts) -> None:
    """Every code that of a zero; integers in words are stored with the offset of their symmetric zero-point."""
    tensor = parts[part_of("codes", parts)]
    eight = tensor.dtype == torch.int32 and "weight_shape" in parts and tensor.shape[1] * 4 == parts["weight_shape"][1]
    word = -0x7F7F7F80 if eight else -0x77777778
    bits(tensor).fill_(word if tensor.dtype == torch.int32 else 0)


def swapped(parts: Parts, twin: Parts) -> None:
    for part in parts:
        parts[part], twin[part] = twin[part], parts[part]


def scales_of_the_twin(parts: Parts, twin: Parts) -> None:
    parts.update({part: twin[part].clone() for part in (*PARTS["scale"], *PARTS["global"]) if part in parts})


def turned_block(tensor: Tensor) -> None:
    """A block of values with the opposite sign; integers as far on the other side of half a step below zero."""
    block = bits(tensor)[: len(tensor) // 2, : tensor.shape[1] // 2]
    if tensor.dtype in (torch.int32, torch.int8):
        block.copy_(block.bitwise_not())
    else:
        block.bitwise_xor_(0x88 if tensor.dtype == torch.uint8 else 0x80)


def other_nibble_first(tensor: Tensor) -> Tensor:
    """In bytes the high nibble first; in words every code one place further."""
    if tensor.dtype == torch.uint8:
        return (tensor >> 4) | (tensor << 4)
    return (tensor << 4) | ((tensor >> 28) & 0xF)


def column_by_column(tensor: Tensor) -> None:
    """Written transposed, under the shape that it should have."""
    bits(tensor).copy_(bits(tensor).T.contiguous().reshape(tensor.shape))


def one_doubled(scales: Tensor) -> None:
    flat = scales.view(-1)
    place = min(3, flat.numel() - 1)
    flat[place] = flat[place] + 1 if flat.dtype == torch.uint8 else (flat[place].float() * 2).to(flat.dtype)


def flipped_exponent(scales: Tensor) -> None:
    """The highest bit of the exponent of one."""
    flat = bits(scales.view(-1))
    flat[-1] ^= _BIT[flat.dtype]


def flipped_code(tensor: Tensor) -> None:
    """The sign of the largest value of FP8 and INT8, the highest bit of a size of what is packed."""
    place = int(tensor.float().abs().argmax()) if tensor.dtype in (torch.float8_e4m3fn, torch.int8) else 5
    bits(tensor.view(-1))[place] ^= {torch.uint8: 0x44, torch.int32: 0x40000000}.get(tensor.dtype, 0x80)


def first_is(number: float) -> Callable[[Tensor], None]:
    """An exponent of 255 is NaN."""

    def put(tensor: Tensor) -> None:
        is_exponent = tensor.dtype == torch.uint8 and number != number
        tensor.view(-1)[0] = 255 if is_exponent else torch.tensor(number).to(tensor.dtype)

    return put


def negated(scales: Tensor) -> None:
    scales.view(-1)[0] = (-scales.view(-1)[0].float()).to(scales.dtype)


@dataclass(frozen=True)
class Kind:
    """A change, and the rule that names the weight, or that part of it; `others` for some formats."""

    what: str
    change: PartsChange
    formats: tuple[str, ...] = ALL
    rule: str = BEYOND
    part: str | None = None
    others: tuple[tuple[str, ...], str] = ((), "")


KINDS = [
    Kind("all values zero", erased),
    Kind("two experts exchanged", swapped),
    Kind("scales of another expert", scales_of_the_twin),
    Kind("a block of values with the opposite sign", each("codes", turned_block)),
    Kind("codes packed in another order", instead("codes", other_nibble_first),
         (*NVFP4, "ct-mxfp4", "modelopt-mxfp4", *WORDS, *GPTQ, *AWQ)),
    Kind("rows under the scales of the row before", each("codes", lambda t: bits(t).copy_(bits(t).roll(1, 0)))),
    Kind("written column by column", each("codes", column_by_column)),
    Kind("scales written column by column", each("scale", column_by_column), SEVERAL_PER_ROW),
    Kind("one scale doubled", each("scale", one_doubled)),
    Kind("one bit of a scale's exponent flipped", each("scale", flipped_exponent)),
    Kind("one bit of a code flipped", each("codes", flipped_code)),
    Kind("one scale NaN", each("scale", first_is(NAN)), rule="non-finite", part="scale"),
    Kind("one value NaN", each("codes", lambda t: bits(t).view(-1)[5:6].fill_(0x7F)),
         (*FP8, "ct-mxfp8", "modelopt-mxfp8"), "non-finite", "codes"),
    Kind("all scales zero", each("scale", Tensor.zero_), rule="zero-scale", part="scale"),
    Kind("one group erased by its scale", each("scale", first_is(0)), rule="zero-scale", part="scale"),
    Kind("one negative scale", each("scale", negated), (*NVFP4, *FP8, *INT8, *WORDS, "gptq-v1", "gptq-v2"),
         "negative-scale", "scale"),
    Kind("one scale's sign lost", each("scale", negated), AUTOROUND),
    Kind("one infinite scale", each("scale", first_is(INF)), (*FP8, *INT8, *WORDS, *GPTQ, *AWQ), "non-finite",
         "scale"),
    Kind("scales lost", lambda parts, twin: parts.pop(part_of("scale", parts)), rule="not-as-declared", part=""),
    Kind("one row short", instead("codes", lambda t: t[:-1]), rule="undecodable",
         others=((*FP8_TENSOR, "tf-fp8-per-expert", "autoround-sym", "autoround-asym"), "shape")),
    Kind("scales under another dtype of their size", instead("scale", lambda t: t.view(_AS_WIDE[t.dtype])),
         rule="undecodable", others=((*WORDS, *GPTQ, *AWQ, *INT8, "ct-fp8-block", "ct-fp8-channel-dynamic",
                                      "ct-fp8-tensor-static"), BEYOND)),
    Kind("codes under another dtype of their size", instead("codes", lambda t: t.view(_AS_WIDE[t.dtype])),
         rule="undecodable"),
    *(Kind(f"global scale {number}", each("global", lambda t, number=number: t.fill_(number)), NVFP4, rule, "global")
      for number, rule in ((0.0, "zero-scale"), (INF, "non-finite"), (NAN, "non-finite"), (-1.0, "negative-scale"))),
    Kind("global scale denormal", each("global", lambda t: t.fill_(1e-41)), NVFP4),
    Kind("global scale doubled", each("global", lambda t: t.mul_(2)), NVFP4),
    *(Kind(f"input scale {number}", each("inputs", lambda t, number=number: t.fill_(number)), STATIC_INPUTS,
           "activation-scale", "inputs") for number in (0.0, INF, NAN, -1.0, 1e-30)),
    Kind("zero-points one off", instead("zeros", lambda t: t ^ 0x11111111),
         (*GPTQ, *AWQ, "ct-awq", "ct-w4a16-asym")),
    Kind("zero-points that a symmetric scheme does not have", instead("zeros", lambda t: t ^ 0x11111111), SYMMETRIC,
         "zero-point", "zeros"),
    Kind("columns in another order", instead("order", lambda t: t.flip(0)),
         ("gptq-v1", "gptq-v2", "autoround-gptq", "ct-w4a16-ordered")),
]  # fmt: skip


def on(change: PartsChange, module: str, twin: str) -> Damage:
    """The change as one of a checkpoint folder."""

    def damage(tensors: Tensors) -> None:
        taken = {
            name: {stored.removeprefix(f"{name}."): tensors.pop(stored).clone() for stored in parts_of(tensors, name)}
            for name in (module, twin)
        }
        change(taken[module], taken[twin])
        tensors |= {f"{name}.{part}": tensor for name, parts in taken.items() for part, tensor in parts.items()}

    return edit(damage)


def _subject(kind: Kind, checkpoint: str, module: str, golden: Path) -> str:
    if kind.part is None:
        return f"{module}.weight"
    stored = load_file(golden / checkpoint / WEIGHTS)
    parts = {name.removeprefix(f"{module}."): stored[name] for name in parts_of(stored, module)}
    return f"{module}.{part_of(kind.part, parts)}" if kind.part else module


def _of_a_format(number: int, kind: Kind, place: int, golden: Path) -> Case:
    """Two formats of every kind are quick, others for each."""
    checkpoint, among, module = kind.formats[place], len(kind.formats), f"{MINE}.up_proj"
    rule = kind.others[1] if checkpoint in kind.others[0] else kind.rule
    quick = place in (number % among, (number + among // 2) % among)
    damage = on(kind.change, module, f"{OTHER}.up_proj")
    return Case(kind.what, checkpoint, damage, _subject(kind, checkpoint, module, golden), rule, True, quick)


# ---- what one format alone has

EXPERTS, UP = "model.layers.0.mlp.experts", f"{MINE}.up_proj.weight"
SCALES = f"{EXPERTS}.gate_up_proj_scale_inv"


def other_version(folder: Path) -> None:
    """GPTQ's zero-points read by the other version's rule: one off."""

    def change(document: dict[str, Any]) -> None:
        declared = document["quantization_config"]
        declared["checkpoint_format"] = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[declared["checkpoint_format"]]

    edit_json(folder, "config.json", change)


def static_inputs(folder: Path) -> None:
    """Fine-grained FP8 with static inputs, one of whose scales is negative."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale_inv")]:
            tensors[name.replace("weight_scale_inv", "activation_scale")] = torch.tensor(0.02)
        tensors[f"{MINE}.up_proj.activation_scale"] = torch.tensor(-1.0)

    edit_tensors(folder, change)
    quantization(activation_scheme="static")(folder)


def own_file(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_json(folder, OWN_FILE, lambda own: change(own["quantization"]))


def stacked(part: str, change: Callable[[Tensor], object]) -> Damage:
    """A change of one of the tensors that hold all experts."""
    return edit(lambda tensors: change(bits(tensors[f"{EXPERTS}.{part}"])))


def _reciprocal(tensor: Tensor) -> None:
    tensor.view(torch.float32).reciprocal_()


GOLDEN_ALONE = [
    ("zero-points read by the other version's rule", "gptq-v1", other_version, UP, BEYOND),
    ("zero-points read by the other version's rule", "gptq-v2", other_version, UP, BEYOND),
    ("a head declared quantized", "gptq-v1", quantization(lm_head=True), HEAD, "declared-against-stored"),
    ("a malformed rule", "gptq-v1", quantization(dynamic={"+:(": {}}), "config.json", "quantization-not-read"),
    ("another algorithm in its own file", "modelopt-nvfp4", own_file(lambda own: own.update(quant_algo="FP8")),
     OWN_FILE, "declared-twice"),
    ("another algorithm of a layer in its own file", "modelopt-mixed",
     own_file(lambda own: next(iter(own["quantized_layers"].values())).update(quant_algo="MXFP8")), OWN_FILE,
     "declared-twice"),
    ("a static input scale below zero", "tf-fp8-per-expert", static_inputs, f"{MINE}.up_proj.activation_scale",
     "activation-scale"),
    *((what, "tf-fp8-fused", damage, subject, rule) for what, damage, subject, rule in [
        ("experts exchanged in the tensor of all", stacked("gate_up_proj", lambda t: t.copy_(t.flip(0))), UP, BEYOND),
        ("scales of experts exchanged in the tensor of all",
         stacked("gate_up_proj_scale_inv", lambda t: t.copy_(t.flip(0))), UP, BEYOND),
        ("gate and up exchanged in the tensor of all",
         stacked("gate_up_proj", lambda t: t.copy_(t.roll(t.shape[1] // 2, 1))), UP, BEYOND),
        ("scales that divide instead of multiply", stacked("gate_up_proj_scale_inv", _reciprocal), UP, BEYOND),
        ("scales of the tensor of all lost", lost(SCALES), f"{EXPERTS}.gate_up_proj", "not-as-declared"),
        ("one scale of the tensor of all NaN",
         stacked("gate_up_proj_scale_inv", lambda t: t[1, 0, :1].fill_(0x7FC00000)), SCALES, "non-finite"),
        ("one expert of the tensor all zero", stacked("gate_up_proj", lambda t: t[1].zero_()), UP, BEYOND),
    ]),
    *((what, "ct-fp8-embeddings", on(change, "model.embed_tokens", "lm_head"), subject, rule)
      for what, change, subject, rule in [
        ("all values zero", erased, EMBEDDINGS, BEYOND),
        ("one scale NaN", each("scale", first_is(NAN)), "model.embed_tokens.weight_scale", "non-finite"),
        ("scales lost", lambda parts, twin: parts.pop("weight_scale"), "model.embed_tokens", "not-as-declared"),
    ]),
]  # fmt: skip

# ---- the sandbox: its tokenizer, and what larger weights alone show

FIRST = "model.layers.0.mlp.experts.0.down_proj.weight"


def exchanged_tokens(folder: Path) -> None:
    def exchange(core: dict[str, Any]) -> None:
        vocabulary = core["model"]["vocab"]
        first, second = list(vocabulary)[300:302]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    edit_json(folder, "tokenizer.json", exchange)


def token_without_embedding(folder: Path) -> None:
    edit_json(folder, "tokenizer.json", lambda core: core["model"]["vocab"].update(beyond=1024))


def one_halved_row(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".mlp.experts." in name and name.endswith(".weight_scale")]:
        scale = tensors[name].float()
        scale[:1] /= 2
        tensors[name] = scale.to(tensors[name].dtype)


OF_THE_SANDBOX = [
    ("two tokens exchanged", "main", exchanged_tokens, "tokenizer.json", "tokenizer-differs"),
    ("a token without an embedding", "main", token_without_embedding, "tokenizer.json",
     "tokenizer-differs vocabulary"),
    ("every expert on a grid twice as coarse", "main", twice_as_coarse, FIRST, BEYOND),
    ("one row of every expert halved", "main", edit(one_halved_row), FIRST, BEYOND),
    ("block scales transposed", "fp8-head", one("lm_head.weight_scale", lambda t: t.T), HEAD,
     "declared-against-stored undecodable"),
    ("block scales written column by column", "fp8-head",
     one("lm_head.weight_scale", lambda t: t.T.contiguous().reshape(t.shape)), HEAD, BEYOND),
]  # fmt: skip


def small_value(tensors: Tensors) -> None:
    codes = tensors[f"{MINE}.up_proj.weight"].view(torch.uint8).view(-1)
    codes[int((codes & 0x7F).argmin())] ^= 0x01


UNSEEN = [
    ("scales of all inputs 20 times too small or too large", "main", inputs_twenty_times),  # the KL finds it
    ("scales of the KV cache a tenth of what keys and values need", "main", clipping_cache),  # the KL finds it
    ("the last bit of a small FP8 value", "ct-mxfp8", edit(small_value)),  # the hash of the file finds it
    ("a wrong multi-token head that its card declares quantized", "tiny-nvfp4", in_fp8(MTP)),  # no probe runs it
]
"""What no file can show, since another calibration might have given it."""
HYBRID = [
    *(("tiny-nvfp4", *entry) for entry in (*UNQUANTIZED, *QUANTIZED, *BESIDE, *DECLARED, *FILES)),
    *(("tiny-nvfp4", what, damage, "config.json", rules) for what, damage, rules in (*OF_ITSELF, *CONFIGURATION)),
    *(("tiny-fused", *entry) for entry in FUSED_EXPERTS),
]


def cases(golden: Path) -> list[Case]:
    """All of them; `golden` is the folder of the producers' checkpoints."""
    return [
        *(
            _of_a_format(number, kind, place, golden)
            for number, kind in enumerate(KINDS)
            for place in range(len(kind.formats))
        ),
        *(Case(*entry, at_least=True) for entry in GOLDEN_ALONE),
        *(Case(what, name, damage, subject, rules) for name, what, damage, subject, rules in HYBRID),
        *(Case(*entry) for entry in OF_THE_SANDBOX),
    ]
