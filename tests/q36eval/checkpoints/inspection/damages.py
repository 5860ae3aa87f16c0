"""The table of damages: what is wrong, the checkpoint, the change, what an inspection names, and by which rules.

Checkpoints are those of `tiny.write`, golden files of the producers among them, and branches of the sandbox. All are
compared with their reference.
"""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import tiny
from .damage import (
    FP8_CACHE,
    ONE,
    OWN_FILE,
    TWO,
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
    exchanged,
    in_config,
    inputs_twenty_times,
    one,
    parts_of,
    quantization,
    sharded,
    stray_file,
    twice_as_coarse,
)


@dataclass(frozen=True)
class Case:
    """`rules` are all blocking rules that name the subject; with `at_least` those of subjects that begin with it."""

    what: str
    checkpoint: str
    damage: Damage
    subject: str
    rules: str
    at_least: bool = False

    @property
    def id(self) -> str:
        """Such as `ct-nvfp4: two experts exchanged`."""
        return f"{self.checkpoint}: {self.what}"


LINEAR, FULL, LAST = "model.layers.0.linear_attn", "model.layers.1.self_attn", "model.layers.2.linear_attn"
MLP = "model.layers.1.mlp"
EXPERT, TWIN = f"{MLP}.experts.3", f"{MLP}.experts.2"
NORM, HEAD, EMBEDDINGS = "model.norm.weight", "lm_head.weight", "model.embed_tokens.weight"
CHANGED, BEYOND = "unquantized-differs", "beyond-scheme"
Change = Callable[[Tensor], Tensor]


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


def lost(prefix: str) -> Damage:
    return edit(lambda tensors: [tensors.pop(name) for name in [*tensors] if name.startswith(prefix)])


def added(**tensors: Tensor) -> Damage:
    return edit(lambda stored: stored.update(tensors))


zero, negative = torch.zeros_like, torch.neg
NAN = float("nan")
CONVOLUTION, QKV = f"{LINEAR}.conv1d.weight", f"{LINEAR}.in_proj_qkv.weight"
SURPLUS = "model.layers.0.extra.weight"
UNQUANTIZED = [
    ("decay rates of the opposite sign", one(f"{LINEAR}.A_log", negative), f"{LINEAR}.A_log", CHANGED),
    ("convolution without its middle axis", one(CONVOLUTION, lambda t: t[:, 0]), CONVOLUTION, "shape"),
    ("two layers of linear attention exchanged", exchanged(LINEAR, LAST), f"{LINEAR}.in_proj_z.weight", CHANGED),
    ("one exponent's highest bit of a norm flipped", one(NORM, flipped(0x4000)), NORM, f"{BEYOND} {CHANGED}"),
    ("the last bit of one embedding flipped", one(EMBEDDINGS, flipped(1, 77)), EMBEDDINGS, CHANGED),
    ("one value NaN", one(HEAD, value(NAN)), HEAD, f"{BEYOND} non-finite {CHANGED}"),
    ("BF16 read as F16", one(QKV, lambda t: t.view(torch.float16)), QKV, CHANGED),
    ("a tensor lost", lost(f"{LINEAR}.dt_bias"), f"{LINEAR}.dt_bias", "missing-tensor"),
    ("a tensor that the model does not have", added(**{SURPLUS: torch.ones(2)}), SURPLUS, "unexpected-tensor"),
]


def left_out(folder: Path) -> None:
    """An expert's projection as in the reference, and on the ignore list."""
    original, module = load_file(folder.parent / "reference" / WEIGHTS), f"{EXPERT}.up_proj"

    def restore(tensors: Tensors) -> None:
        for name in parts_of(tensors, module):
            del tensors[name]
        tensors[f"{module}.weight"] = original[f"{module}.weight"]

    edit_tensors(folder, restore)
    edit_json(folder, "config.json", lambda document: document["quantization_config"]["ignore"].append(module))


GLOBAL = f"{EXPERT}.up_proj.weight_global_scale"
INPUT, KEYS = f"{EXPERT}.up_proj.input_global_scale", f"{FULL}.k_scale"
OF_LINEAR, TWICE, CACHE = "model.layers.0.self_attn.k_scale", f"{FULL}.k_proj.k_scale", "kv-cache-scale"
QUANTIZED = [
    ("an expert left unquantized", left_out, f"{EXPERT}.up_proj.weight", "expert-left-out"),
    ("two experts exchanged", exchanged(EXPERT, TWIN), f"{EXPERT}.down_proj.weight", BEYOND),
    (
        "an expert a tenth too large",
        one(GLOBAL, lambda t: t / 1.1),
        f"{EXPERT}.up_proj.weight",
        BEYOND,
    ),
    ("an input scale far from all others", one(INPUT, lambda t: t * 1000), INPUT, "activation-scale"),
    ("two input scales", one(INPUT, lambda t: t.repeat(2)), INPUT, "activation-scale"),
    ("a scale of the KV cache NaN", one(KEYS, lambda t: t * NAN), KEYS, f"{CACHE} non-finite"),
    ("a scale of the KV cache zero", one(KEYS, zero), KEYS, CACHE),
    ("a scale of the KV cache a billion times as large", one(KEYS, lambda t: t * 1e9), KEYS, CACHE),
    ("scales of the KV cache for other heads", one(KEYS, lambda t: t.repeat(3)), KEYS, CACHE),
    ("a scale of the KV cache in linear attention", added(**{OF_LINEAR: torch.tensor(1.0)}), OF_LINEAR, CACHE),
    ("a scale of the KV cache stored twice", added(**{TWICE: torch.tensor(0.02)}), TWICE, CACHE),
]


MTP = "mtp.fc.weight"
LEFT_OUT = [
    ("one bit of the multi-token head flipped", one(MTP, flipped(1, 9)), MTP, "shipped-differs"),
    ("one value of the multi-token head NaN", one(MTP, value(NAN)), MTP, "non-finite shipped-differs"),
    ("the multi-token head transposed", one(MTP, lambda t: t.T), MTP, "shipped-differs"),
]
"""What else can become of these tensors is in `test_promised.py`."""
FUSED, DOWN = f"{MLP}.experts.gate_up_proj", f"{MLP}.experts.down_proj"


GATE, DOWN_OF_EXPERT = f"{EXPERT}.gate_proj.weight", f"{EXPERT}.down_proj.weight"
SURPLUS_EXPERT = f"{MLP}.experts.4.gate_proj.weight"
FUSED_EXPERTS = [
    ("gate and up exchanged", one(FUSED, lambda t: torch.cat([t[:, 32:], t[:, :32]], 1)), GATE, CHANGED),
    ("experts transposed", one(DOWN, lambda t: t.transpose(1, 2)), DOWN_OF_EXPERT, "shape"),
    ("one value NaN", one(DOWN, in_place(lambda t: t[3, 0, :1].fill_(NAN))), DOWN_OF_EXPERT, f"{BEYOND} {CHANGED}"),
    ("one expert too few", one(DOWN, lambda t: t[:-1]), DOWN_OF_EXPERT, "missing-tensor"),
    ("one expert too many", one(FUSED, lambda t: torch.cat([t, t[:1]])), SURPLUS_EXPERT, "unexpected-tensor"),
]


def group_declared(**changes: Any) -> Damage:
    return in_config(lambda document: document["quantization_config"]["config_groups"]["group_0"].update(changes))


def without(key: str) -> Damage:
    return in_config(lambda document: document.pop(key))


def nested(text: Any = None, **outside: Any) -> Damage:
    """As a whole model's configuration holds the text model's, with a quantization there and entries outside of it."""

    def change(document: dict[str, Any]) -> None:
        inner = {
            key: document.pop(key) for key in list(document) if key not in ("architectures", "quantization_config")
        }
        inner |= {} if text is None else {"quantization_config": text}
        document.update(text_config=inner, model_type="qwen3_5_moe", architectures=[NESTED])
        document.update(outside)

    return in_config(change)


def head_declared(document: dict[str, Any]) -> None:
    document["quantization_config"]["ignore"].remove("lm_head")
    document["quantization_config"]["config_groups"]["group_0"]["targets"].append("lm_head")


def dead_group(document: dict[str, Any]) -> None:
    groups = document["quantization_config"]["config_groups"]
    groups["group_9"] = {**groups["group_0"], "targets": ["re:.*nothing.*"]}


COMPUTED, OTHERWISE, CONTRADICTS = "computation-differs", "engines-read-otherwise", "rope-contradicts"
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
MEASURED = {
    "norm_topk_prob": True,
    "qkv_bias": None,
    "rope_parameters": ROPE | {"type": "default"},
    "rope_theta": 1e4,
}
"""Entries as transformers reads them whatever they are: no damage."""
READ_OTHERWISE: list[tuple[str, Any]] = [
    ("norm_topk_prob", False),
    ("norm_topk_prob", None),  # null counts as false to vLLM
    ("qkv_bias", True),
]
OF_ITSELF = [
    *((f"{key} is {json.dumps(given)}", config(**{key: given}), OTHERWISE) for key, given in READ_OTHERWISE),
    ("another base of the rotary embedding beside it", config(rope_theta=5.0), CONTRADICTS),
    ("another type by its older name", config(rope_parameters=ROPE | {"type": "dynamic"}), f"{CONTRADICTS} {COMPUTED}"),
    (
        "another type in rope_scaling",
        config(rope_scaling={"type": "yarn"}),
        f"{CONTRADICTS} {COMPUTED} malformed-config",
    ),
    ("another end of answers than generation_config's", config(eos_token_id=2), "ends-contradict"),
    ("another end of answers outside the text model's entries", nested(eos_token_id=5), "ends-contradict"),
    ("another quantization outside the text model's entries", nested(text={"quant_method": "fp8"}), "declared-twice"),
]
"""Entries of config.json that contradict each other or what is measured, whatever the reference's are."""
NESTED, ARCHITECTURE = "Qwen3_5MoeForConditionalGeneration", "architecture"
INT4_CACHE = FP8_CACHE | {"num_bits": 4, "type": "int"}
CONFIGURATION = [
    ("another number of experts", config(num_experts_per_tok=1), COMPUTED),
    ("a number of experts left out, for which transformers takes 8", without("num_experts_per_tok"), COMPUTED),
    ("another base of the rotary embedding", config(rope_parameters=ROPE | {"rope_theta": 1e6}), COMPUTED),
    ("no architecture", config(architectures=None), ARCHITECTURE),
    ("another model's type", config(model_type="llama"), f"{ARCHITECTURE} {COMPUTED}"),
    ("a nested model's type with flat entries", config(architectures=[NESTED], model_type="qwen3_5_moe"), ARCHITECTURE),
    ("fewer layers than kinds of layers", config(num_hidden_layers=2), f"layer-types {COMPUTED} malformed-config"),
    ("no size of experts", without("moe_intermediate_size"), COMPUTED),
    ("a size below zero", config(hidden_size=-64), "malformed-config"),
    ("an ignore list that matches nothing", quantization(ignore=["re:.*nothing.*"]), "ignore-list-matches-nothing"),
    ("a malformed pattern", quantization(ignore=["re:(head"]), "quantization-not-read"),
    ("a KV cache that is not emulated", quantization(kv_cache_scheme=INT4_CACHE), "kv-cache"),
]
GROUPS_OF_32 = tiny.NVFP4["config_groups"]["group_0"]["weights"] | {"group_size": 32}
EXCHANGED_LAYERS = ["full_attention", "linear_attention", "linear_attention"]
UNDECODABLE = "declared-against-stored undecodable"
DECLARED = [
    ("kinds of two layers exchanged", config(layer_types=EXCHANGED_LAYERS), "model.layers.0", "layer-types"),
    ("groups of other sizes declared", group_declared(weights=GROUPS_OF_32), f"{EXPERT}.up_proj.weight", UNDECODABLE),
    ("no groups of weights", quantization(config_groups={}), f"{EXPERT}.up_proj", "not-as-declared"),
    ("inputs declared unquantized", group_declared(input_activations=None), INPUT, "activation-scale"),
    ("the head declared quantized", in_config(head_declared), "lm_head", "not-as-declared"),
    ("a group that means nothing", in_config(dead_group), "group_9", "declared-scheme-absent"),
    ("a head declared tied", config(tie_word_embeddings=True), HEAD, "tied-head"),
    ("a smaller vocabulary declared", config(vocab_size=63), HEAD, "shape"),
]


def also_in_the_drafts(folder: Path) -> None:
    save_file({HEAD: load_file(folder / WEIGHTS)[HEAD]}, folder / "model_mtp.safetensors")


OLD, NO_TENSORS = "model.old.weight", struct.pack("<Q", 2) + b"{}"
TEMPLATE, GENERATION = "chat_template.jinja", "generation_config.json"
NOT_TEXT: Damage = lambda folder: edit_header(folder, lambda own: own.update(__metadata__={"format": 1}))  # noqa: E731
OTHER_ENDS: Damage = lambda folder: edit_json(folder, GENERATION, lambda own: own.update(eos_token_id=[1, 0]))  # noqa: E731
FILES = [
    ("a file cut short", sharded(lambda folder, files: os.truncate(folder / TWO, 1000)), TWO, "unreadable-file"),
    ("a file missing", sharded(lambda folder, files: (folder / ONE).unlink()), ONE, "missing-file"),
    ("an index that names a lost tensor", sharded(lambda folder, files: files.update({OLD: ONE})), OLD, "index"),
    ("an index that leaves a tensor out", sharded(lambda folder, files: files.pop(HEAD)), HEAD, "index"),
    ("a copy of the weights beside them", stray_file, HEAD, "stored-twice"),
    ("a tensor in two files", also_in_the_drafts, HEAD, "stored-twice"),
    ("no tensors", lambda folder: (folder / WEIGHTS).write_bytes(NO_TENSORS), WEIGHTS, "empty-file"),
    ("a header in UTF-16", lambda folder: edit_header(folder, dict, "utf-16"), WEIGHTS, "unreadable-file"),
    ("metadata that are not text", NOT_TEXT, WEIGHTS, "unreadable-file"),
    ("no chat template", lambda folder: (folder / TEMPLATE).unlink(), TEMPLATE, "chat-template-missing"),
    ("another generation_config.json", OTHER_ENDS, GENERATION, "generation-config-differs"),
]

# ---- one quantized weight of every format, as the producers wrote it

ALL = tuple(sorted({*tiny.MANIFEST} - {"ct-fp8-embeddings", "tf-fp8-fused"}))
NVFP4 = ("ct-nvfp4", "modelopt-nvfp4")
SOME = (*NVFP4, "ct-mxfp4", "tf-fp8-per-expert", "ct-w8a8-int8", "ct-w4a16-group", "gptq-v1", "autoround-awq")
"""One of each decoder."""
STATIC_INPUTS = ("ct-fp8-tensor-static", "modelopt-fp8", "ct-nvfp4", "modelopt-nvfp4")
ZERO_POINTS = ("gptq-v1", "autoround-asym", "autoround-awq", "ct-awq", "ct-w4a16-asym")
MINE, OTHER = "model.layers.0.mlp.experts.1", "model.layers.0.mlp.experts.0"
Parts = dict[str, Tensor]
PartsChange = Callable[[Parts, Parts], object]
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


def of_the_twin(*kinds: str) -> PartsChange:
    """Some parts replaced by those of another expert."""
    names = [part for kind in kinds for part in PARTS[kind]]
    return lambda parts, twin: parts.update({part: twin[part].clone() for part in names if part in parts})


def one_doubled(scales: Tensor) -> None:
    flat = scales.view(-1)
    place = min(3, flat.numel() - 1)
    flat[place] = flat[place] + 1 if flat.dtype == torch.uint8 else (flat[place].float() * 2).to(flat.dtype)


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


Kind = tuple[str, PartsChange, str, tuple[str, ...]]
NEGATED = each("scale", lambda t: t.view(-1)[:1].copy_(-t.view(-1)[:1].float()))
ONE_OFF = instead("zeros", lambda t: t ^ 0x11111111)
NOT_A_CODE = each("codes", lambda t: bits(t).view(-1)[5:6].fill_(0x7F))
KINDS: list[Kind] = [
    ("one scale doubled", each("scale", one_doubled), BEYOND, ALL),
    ("one scale NaN", each("scale", first_is(NAN)), "non-finite", ALL),
    ("values of another expert", of_the_twin("codes"), BEYOND, SOME),
    ("scales of another expert", of_the_twin("scale", "global"), BEYOND, SOME),
    ("one bit of a code flipped", each("codes", flipped_code), BEYOND, SOME),
    ("one value NaN", NOT_A_CODE, "non-finite", ("tf-fp8-per-expert", "modelopt-mxfp8")),
    ("all scales zero", each("scale", Tensor.zero_), "zero-scale", SOME),
    ("one group erased by its scale", each("scale", first_is(0)), "zero-scale", SOME),
    ("one negative scale", NEGATED, "negative-scale", ("ct-fp8-block", "gptq-v1")),
    ("one scale's sign lost", NEGATED, BEYOND, ("autoround-gptq", "autoround-awq")),
    ("scales lost", lambda parts, twin: parts.pop(part_of("scale", parts)), "not-as-declared", SOME),
    ("one row short", instead("codes", lambda t: t[:-1]), "undecodable", ("ct-nvfp4", "ct-awq", "gptq-v1")),
    ("a global scale of zero", each("global", Tensor.zero_), "zero-scale", NVFP4),
    ("a global scale of NaN", each("global", lambda t: t.fill_(NAN)), "non-finite", NVFP4),
    ("a global scale below zero", each("global", Tensor.neg_), "negative-scale", NVFP4),
    ("global scale doubled", each("global", lambda t: t.mul_(2)), BEYOND, NVFP4),
    ("an input scale of zero", each("inputs", Tensor.zero_), "activation-scale", STATIC_INPUTS),
    ("an input scale near zero", each("inputs", lambda t: t.fill_(1e-30)), "activation-scale", STATIC_INPUTS),
    ("zero-points one off", ONE_OFF, BEYOND, ZERO_POINTS),
    ("zero-points of a symmetric scheme", ONE_OFF, "zero-point", ("autoround-sym",)),
    ("columns in another order", instead("order", lambda t: t.flip(0)), BEYOND, ("gptq-v1", "ct-w4a16-ordered")),
]


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


# ---- what one format alone has

EXPERTS, UP = "model.layers.0.mlp.experts", f"{MINE}.up_proj.weight"
ACTIVATIONS = f"{MINE}.up_proj.activation_scale"
SCALES, SIGNED = f"{EXPERTS}.gate_up_proj_scale_inv", f"{MINE}.up_proj.scales"
IN_16_BITS = quantization(extra_config={f"{MINE}.up_proj": {"bits": 16}})


def static_inputs(folder: Path) -> None:
    """Fine-grained FP8 with static inputs, one of whose scales is negative."""

    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale_inv")]:
            tensors[name.replace("weight_scale_inv", "activation_scale")] = torch.tensor(0.02)
        tensors[ACTIVATIONS] = torch.tensor(-1.0)

    edit_tensors(folder, change)
    quantization(activation_scheme="static")(folder)


def own_file(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: edit_json(folder, OWN_FILE, lambda document: change(document["quantization"]))


OWN_FP8 = own_file(lambda own: own.update(quant_algo="FP8"))
OWN_LAYER = own_file(lambda own: next(iter(own["quantized_layers"].values())).update(quant_algo="MXFP8"))
GOLDEN_ALONE = [
    ("zero-points read by the other version's rule", "gptq-v1", quantization(checkpoint_format="gptq_v2"), UP, BEYOND),
    ("a head declared quantized", "gptq-v1", quantization(lm_head=True), HEAD, "declared-against-stored"),
    ("another algorithm in its own file", "modelopt-nvfp4", OWN_FP8, OWN_FILE, "declared-twice"),
    ("another algorithm of a layer in its own file", "modelopt-mixed", OWN_LAYER, OWN_FILE, "declared-twice"),
    (
        "scales with a sign of another producer",
        "autoround-gptq",
        quantization(provider=None),
        SIGNED,
        "negative-scale",
    ),
    (
        "a layer of 16 bits in the entry alone",
        "autoround-sym",
        IN_16_BITS,
        f"{MINE}.up_proj",
        "not-as-declared",
    ),
    ("groups of other sizes declared", "autoround-awq", quantization(group_size=32), UP, "declared-against-stored"),
    ("a static input scale below zero", "tf-fp8-per-expert", static_inputs, ACTIVATIONS, "activation-scale"),
    ("scales that divide instead of multiply", "tf-fp8-fused", one(SCALES, torch.reciprocal), UP, BEYOND),
    ("one scale of the tensor of all NaN", "tf-fp8-fused", one(SCALES, value(NAN)), SCALES, "non-finite"),
    ("all values zero", "ct-fp8-embeddings", one(EMBEDDINGS, zero), EMBEDDINGS, BEYOND),
]

# ---- the sandbox: what larger weights alone show

FIRST = "model.layers.0.mlp.experts.0.down_proj.weight"


def one_halved_row(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".mlp.experts." in name and name.endswith(".weight_scale")]:
        scale = tensors[name].float()
        scale[:1] /= 2
        tensors[name] = scale.to(tensors[name].dtype)


HEAD_SCALES = "lm_head.weight_scale"
OF_THE_SANDBOX = [
    ("every expert on a grid twice as coarse", "main", twice_as_coarse, FIRST, BEYOND),
    ("one row of every expert halved", "main", edit(one_halved_row), FIRST, BEYOND),
    ("block scales transposed", "fp8-head", one(HEAD_SCALES, lambda t: t.T), HEAD, UNDECODABLE),
    (
        "block scales by columns",
        "fp8-head",
        one(HEAD_SCALES, lambda t: t.T.reshape(t.shape)),
        HEAD,
        BEYOND,
    ),
]


UNSEEN = [
    ("scales of all inputs 20 times too small or too large", "main", inputs_twenty_times),
    ("scales of the KV cache a tenth of what keys and values need", "main", clipping_cache),
]
"""What no file can show, since another calibration might have given it; the KL finds it."""
HYBRID = [
    *(("tiny-nvfp4", *entry) for entry in (*UNQUANTIZED, *QUANTIZED, *LEFT_OUT, *DECLARED, *FILES)),
    *(("tiny-nvfp4", what, damage, "config.json", rules) for what, damage, rules in (*OF_ITSELF, *CONFIGURATION)),
    *(("tiny-fused", *entry) for entry in FUSED_EXPERTS),
]


UP_PROJ = f"{MINE}.up_proj"
CASES = [
    *(
        Case(what, checkpoint, on(change, UP_PROJ, f"{OTHER}.up_proj"), UP_PROJ, rule, at_least=True)
        for what, change, rule, formats in KINDS
        for checkpoint in formats
    ),
    *(Case(*entry, at_least=True) for entry in GOLDEN_ALONE),
    *(Case(what, name, damage, subject, rules) for name, what, damage, subject, rules in HYBRID),
    *(Case(*entry) for entry in OF_THE_SANDBOX),
]
