"""Damage to a tiny model of both kinds of attention: what stays unquantized, what is shipped beside it, its entries.

Each entry is what is wrong, the layout it is done to (`tiny.write`), the change, what an inspection names, and the
blocking rules that name it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .damage import WEIGHTS, Tensors, edit_json, edit_tensors
from .damaged_parts import bits
from .damaged_scales import rescale

Damage = Callable[[Path], object]
Entry = tuple[str, str, Damage, str, str]
LINEAR, FULL, LAST = "model.layers.0.linear_attn", "model.layers.1.self_attn", "model.layers.2.linear_attn"
MLP = "model.layers.1.mlp"
EXPERT, TWIN, ABOVE = f"{MLP}.experts.3", f"{MLP}.experts.2", "model.layers.0.mlp.experts.3"
CHANGED = "unquantized-differs"


def edit(change: Callable[[Tensors], object]) -> Damage:
    return lambda folder: edit_tensors(folder, change)


def one(name: str, change: Callable[[Tensor], Tensor]) -> Damage:
    """One tensor replaced by what `change` makes of it."""
    return edit(lambda tensors: tensors.update({name: change(tensors[name])}))


def exchanged(first: str, second: str) -> Damage:
    """Two tensors, or all parts of two modules, in each other's place."""

    def swap(tensors: Tensors) -> None:
        for name in [name for name in tensors if name == first or name.startswith(f"{first}.")]:
            twin = second + name.removeprefix(first)
            tensors[name], tensors[twin] = tensors[twin], tensors[name]

    return edit(swap)


def copied(source: str, target: str) -> Damage:
    """One module's parts in the place of another's."""

    def copy(tensors: Tensors) -> None:
        for name in [name for name in tensors if name == source or name.startswith(f"{source}.")]:
            tensors[target + name.removeprefix(source)] = tensors[name].clone()

    return edit(copy)


def flipped(mask: int, place: int = 0) -> Callable[[Tensor], Tensor]:
    """Bits of one stored value."""

    def flip(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        bits(changed).view(-1)[place] ^= mask
        return changed

    return flip


def value(number: float) -> Callable[[Tensor], Tensor]:
    """One value replaced."""

    def put(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.view(-1)[1] = number
        return changed

    return put


def rows(*order: int) -> Callable[[Tensor], Tensor]:
    """The first rows in another order."""

    def permute(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[list(order)], tensor[len(order) :]])

    return permute


def zero(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor)


def negative(tensor: Tensor) -> Tensor:
    return -tensor


def as_half(tensor: Tensor) -> Tensor:
    """The bytes as they are, under another dtype."""
    return tensor.view(torch.float16)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float8_e4m3fn).to(tensor.dtype)


UNQUANTIZED: list[Entry] = [
    (what, "tiny-nvfp4", damage, subject, rules)
    for what, damage, subject, rules in [
        ("decay rates of the opposite sign", one(f"{LINEAR}.A_log", negative), f"{LINEAR}.A_log", CHANGED),
        ("decay rates all zero", one(f"{LINEAR}.A_log", zero), f"{LINEAR}.A_log", CHANGED),
        ("decay rates of another layer", copied(f"{LAST}.A_log", f"{LINEAR}.A_log"), f"{LINEAR}.A_log", CHANGED),
        ("step biases of another layer", exchanged(f"{LINEAR}.dt_bias", f"{LAST}.dt_bias"), f"{LAST}.dt_bias", CHANGED),
        ("decay rates and step biases exchanged", exchanged(f"{LINEAR}.A_log", f"{LINEAR}.dt_bias"),
         f"{LINEAR}.dt_bias", CHANGED),
        ("convolution backwards in time", one(f"{LINEAR}.conv1d.weight", lambda t: t.flip(-1)),
         f"{LINEAR}.conv1d.weight", CHANGED),
        ("convolution without its middle axis", one(f"{LINEAR}.conv1d.weight", lambda t: t[:, 0]),
         f"{LINEAR}.conv1d.weight", "shape"),
        ("linear attention's in_proj_a and in_proj_b exchanged",
         exchanged(f"{LINEAR}.in_proj_a", f"{LINEAR}.in_proj_b"), f"{LINEAR}.in_proj_a.weight", CHANGED),
        ("keys and queries of linear attention exchanged",
         one(f"{LINEAR}.in_proj_qkv.weight", lambda t: torch.cat([t[32:64], t[:32], t[64:]])),
         f"{LINEAR}.in_proj_qkv.weight", CHANGED),
        ("a square projection transposed", one(f"{LINEAR}.out_proj.weight", lambda t: t.T),
         f"{LINEAR}.out_proj.weight", CHANGED),
        ("two layers of linear attention exchanged", exchanged(LINEAR, LAST), f"{LINEAR}.in_proj_z.weight", CHANGED),
        ("linear attention rounded to FP8 and stored in BF16", one(f"{LINEAR}.in_proj_z.weight", rounded),
         f"{LINEAR}.in_proj_z.weight", CHANGED),
        ("the gated norm at rest", one(f"{LINEAR}.norm.weight", torch.ones_like), f"{LINEAR}.norm.weight", CHANGED),
        ("rows of a router gate exchanged", one(f"{MLP}.gate.weight", rows(1, 0)), f"{MLP}.gate.weight", CHANGED),
        ("a router gate all zero", one(f"{MLP}.gate.weight", zero), f"{MLP}.gate.weight", CHANGED),
        ("a router gate of another layer", copied("model.layers.0.mlp.gate.weight", f"{MLP}.gate.weight"),
         f"{MLP}.gate.weight", CHANGED),
        ("the shared expert's gate of the opposite sign", one(f"{MLP}.shared_expert_gate.weight", negative),
         f"{MLP}.shared_expert_gate.weight", CHANGED),
        ("a norm with the one added that it is stored without",
         one("model.layers.1.input_layernorm.weight", lambda t: t + 1), "model.layers.1.input_layernorm.weight",
         CHANGED),
        ("the norms of keys and queries exchanged", exchanged(f"{FULL}.q_norm", f"{FULL}.k_norm"),
         f"{FULL}.k_norm.weight", CHANGED),
        ("two norms of a layer exchanged",
         exchanged("model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"),
         "model.layers.1.post_attention_layernorm.weight", CHANGED),
        ("the last norm at rest", one("model.norm.weight", zero), "model.norm.weight", CHANGED),
        ("one exponent's highest bit of a norm flipped", one("model.norm.weight", flipped(0x4000)),
         "model.norm.weight", "beyond-scheme unquantized-differs"),
        ("the last bit of one embedding flipped", one("model.embed_tokens.weight", flipped(1, 77)),
         "model.embed_tokens.weight", CHANGED),
        ("two embeddings exchanged", one("model.embed_tokens.weight", rows(0, 2, 1)), "model.embed_tokens.weight",
         CHANGED),
        ("one embedding all zero", one("model.embed_tokens.weight", lambda t: torch.cat([zero(t[:1]), t[1:]])),
         "model.embed_tokens.weight", CHANGED),
        ("embeddings in the place of the head", copied("model.embed_tokens", "lm_head"), "lm_head.weight", CHANGED),
        ("two rows of the head exchanged", one("lm_head.weight", rows(1, 0)), "lm_head.weight", CHANGED),
        ("the head one row short", one("lm_head.weight", lambda t: t[:-1]), "lm_head.weight", "shape"),
        ("one value NaN", one("lm_head.weight", value(float("nan"))), "lm_head.weight",
         "beyond-scheme non-finite unquantized-differs"),
        ("one value infinite", one(f"{LAST}.out_proj.weight", value(-float("inf"))), f"{LAST}.out_proj.weight",
         "beyond-scheme non-finite unquantized-differs"),
        ("BF16 read as F16", one(f"{LINEAR}.in_proj_qkv.weight", as_half), f"{LINEAR}.in_proj_qkv.weight", CHANGED),
        ("a tensor lost", edit(lambda t: t.pop(f"{LINEAR}.dt_bias")), f"{LINEAR}.dt_bias", "missing-tensor"),
        ("a layer lost", edit(lambda t: [t.pop(name) for name in [*t] if ".layers.2." in name]),
         "model.layers.2.mlp.gate.weight", "missing-tensor"),
        ("a tensor that the model does not have",
         edit(lambda t: t.update({"model.layers.0.extra.weight": torch.ones(2)})),
         "model.layers.0.extra.weight", "unexpected-tensor"),
    ]
]  # fmt: skip


def _own_scale(tensors: Tensors) -> None:
    rescale(f"{EXPERT}.up_proj", 0.5)(tensors)


def _unquantized_again(folder: Path) -> None:
    original = load_file(folder.parent / "reference" / WEIGHTS)
    module = f"{EXPERT}.up_proj"

    def restore(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith(f"{module}.")]:
            del tensors[name]
        tensors[f"{module}.weight"] = original[f"{module}.weight"]

    edit_tensors(folder, restore)
    edit_json(folder, "config.json", lambda config: config["quantization_config"]["ignore"].append(module))


def _all_poisoned(tensors: Tensors) -> None:
    for name in [name for name in tensors if ".experts." in name and name.endswith("weight_global_scale")]:
        tensors[name] = tensors[name] / 1.1


QUANTIZED: list[Entry] = [
    (what, "tiny-nvfp4", damage, subject, rules)
    for what, damage, subject, rules in [
        ("gate and up exchanged", exchanged(f"{EXPERT}.gate_proj", f"{EXPERT}.up_proj"), f"{EXPERT}.up_proj.weight",
         "beyond-scheme error-outlier"),
        ("keys and values exchanged", exchanged(f"{FULL}.k_proj", f"{FULL}.v_proj"), f"{FULL}.v_proj.weight",
         "beyond-scheme"),
        ("two experts exchanged", exchanged(EXPERT, TWIN), f"{EXPERT}.down_proj.weight", "beyond-scheme error-outlier"),
        ("one expert twice", copied(TWIN, EXPERT), f"{EXPERT}.gate_proj.weight", "beyond-scheme error-outlier"),
        ("experts of two layers exchanged", exchanged(EXPERT, ABOVE), f"{ABOVE}.up_proj.weight",
         "beyond-scheme error-outlier"),
        ("scales of the neighbouring layer",
         copied(f"{ABOVE}.down_proj.weight_scale", f"{EXPERT}.down_proj.weight_scale"), f"{EXPERT}.down_proj.weight",
         "beyond-scheme error-outlier"),
        ("one expert all zero", one(f"{EXPERT}.down_proj.weight_packed", zero), f"{EXPERT}.down_proj.weight",
         "beyond-scheme error-outlier"),
        ("every expert a tenth too large", edit(_all_poisoned), f"{EXPERT}.up_proj.weight", "beyond-scheme"),
        ("a global scale other than the fused module's", edit(_own_scale), f"{EXPERT}.gate_up_proj",
         "fused-global-scales"),
        ("one expert's projection left unquantized", _unquantized_again, f"{EXPERT}.up_proj.weight", "expert-left-out"),
        ("half a fused module unquantized", _unquantized_again, f"{EXPERT}.gate_up_proj", "fused-schemes"),
        ("an input scale lost", edit(lambda t: t.pop(f"{EXPERT}.up_proj.input_global_scale")),
         f"{EXPERT}.up_proj.input_global_scale", "activation-scale"),
        ("an input scale far from all others", one(f"{EXPERT}.up_proj.input_global_scale", lambda t: t * 1000),
         f"{EXPERT}.up_proj.input_global_scale", "activation-scale"),
        ("two input scales", one(f"{EXPERT}.up_proj.input_global_scale", lambda t: t.repeat(2)),
         f"{EXPERT}.up_proj.input_global_scale", "activation-scale"),
        ("one scale of the KV cache NaN", one(f"{FULL}.k_scale", lambda t: t * float("nan")), f"{FULL}.k_scale",
         "kv-cache-scale non-finite"),
        ("one scale of the KV cache infinite", one(f"{FULL}.v_scale", lambda t: t * float("inf")), f"{FULL}.v_scale",
         "kv-cache-scale non-finite"),
        ("one scale of the KV cache negative", one(f"{FULL}.v_scale", negative), f"{FULL}.v_scale", "kv-cache-scale"),
        ("one scale of the KV cache zero", one(f"{FULL}.k_scale", zero), f"{FULL}.k_scale", "kv-cache-scale"),
        ("a scale of the KV cache that no keys can need", one(f"{FULL}.k_scale", lambda t: t * 1e9), f"{FULL}.k_scale",
         "kv-cache-scale"),
        ("scales of the KV cache for other heads", one(f"{FULL}.k_scale", lambda t: t.repeat(3)), f"{FULL}.k_scale",
         "kv-cache-scale"),
        ("a scale of the KV cache in linear attention",
         edit(lambda t: t.update({"model.layers.0.self_attn.k_scale": torch.tensor(1.0)})),
         "model.layers.0.self_attn.k_scale", "kv-cache-scale"),
        ("a scale of the KV cache stored twice",
         edit(lambda t: t.update({f"{FULL}.k_proj.k_scale": torch.tensor(0.02)})), f"{FULL}.k_proj.k_scale",
         "kv-cache-scale"),
    ]
]  # fmt: skip
MTP, VISION = "mtp.fc.weight", "model.visual.blocks.0.attn.qkv.weight"


def _quantized(name: str) -> Damage:
    """Stored in FP8 with a scale, where it is said to be unquantized."""
    module = name.removesuffix(".weight")
    return edit(
        lambda t: t.update({name: t[name].to(torch.float8_e4m3fn), f"{module}.weight_scale": torch.ones(1).bfloat16()})
    )


BESIDE: list[Entry] = [
    (f"{part}: {what}", "tiny-nvfp4", damage, subject, rules)
    for part, prefix, name, reason in [
        ("multi-token head", "mtp.", MTP, "multi-token prediction"),
        ("vision tower", "model.visual.", VISION, "vision tower"),
    ]
    for what, damage, subject, rules in [
        ("all zero", one(name, zero), name, "shipped-differs"),
        ("of the opposite sign", one(name, negative), name, "shipped-differs"),
        ("one bit flipped", one(name, flipped(1, 9)), name, "shipped-differs"),
        ("random", one(name, lambda t: torch.randn(t.shape).bfloat16()), name, "shipped-differs"),
        ("one value NaN", one(name, value(float("nan"))), name, "non-finite shipped-differs"),
        ("transposed", one(name, lambda t: t.T), name, "shipped-differs"),
        ("lost", edit(lambda t, prefix=prefix: [t.pop(n) for n in [*t] if n.startswith(prefix)]), reason,
         "shipped-missing"),
        ("one weight lost", edit(lambda t, name=name: t.pop(name)),
         name.removesuffix(".weight").removeprefix("model."), "shipped-incomplete"),
        ("quantized", _quantized(name), name.removesuffix(".weight").removeprefix("model."), "shipped-quantized"),
    ]
]  # fmt: skip
FUSED, DOWN = "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"


def _of_experts(change: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def changed(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        change(copy)
        return copy

    return changed


FUSED_EXPERTS: list[Entry] = [
    (what, "tiny-fused", damage, subject, rules)
    for what, damage, subject, rules in [
        ("gate and up of all experts exchanged", one(FUSED, lambda t: torch.cat([t[:, 32:], t[:, :32]], 1)),
         f"{EXPERT}.gate_proj.weight", CHANGED),
        ("gate and up interleaved", one(FUSED, lambda t: t.unflatten(1, (2, 32)).transpose(1, 2).flatten(1, 2)),
         f"{EXPERT}.gate_proj.weight", CHANGED),
        ("experts transposed", one(DOWN, lambda t: t.transpose(1, 2)), f"{EXPERT}.down_proj.weight", "shape"),
        ("two experts of a tensor exchanged", one(DOWN, rows(1, 0)), "model.layers.1.mlp.experts.0.down_proj.weight",
         CHANGED),
        ("one expert of a tensor all zero", one(FUSED, _of_experts(lambda t: t[3].zero_())),
         f"{EXPERT}.up_proj.weight", CHANGED),
        ("one expert of a tensor twice", one(DOWN, _of_experts(lambda t: t[3].copy_(t[2]))),
         f"{EXPERT}.down_proj.weight", CHANGED),
        ("one value of an expert NaN", one(DOWN, _of_experts(lambda t: t[3, 0, :1].fill_(float("nan")))),
         f"{EXPERT}.down_proj.weight", "beyond-scheme unquantized-differs"),
        ("one expert too few", one(DOWN, lambda t: t[:-1]), "model.layers.1.mlp.experts.3.down_proj.weight",
         "missing-tensor"),
        ("one expert too many", one(FUSED, lambda t: torch.cat([t, t[:1]])),
         "model.layers.1.mlp.experts.4.gate_proj.weight", "unexpected-tensor"),
        ("experts of two layers exchanged", exchanged(FUSED, FUSED.replace("layers.1", "layers.0")),
         f"{ABOVE}.gate_proj.weight", CHANGED),
    ]
]  # fmt: skip


def config(**changes: Any) -> Damage:
    return lambda folder: edit_json(folder, "config.json", lambda document: document.update(changes))


def weights_declared(**changes: Any) -> Damage:
    def change(document: dict[str, Any]) -> None:
        document["quantization_config"]["config_groups"]["group_0"]["weights"].update(changes)

    return lambda folder: edit_json(folder, "config.json", change)


def quantization(**changes: Any) -> Damage:
    return lambda folder: edit_json(
        folder, "config.json", lambda document: document["quantization_config"].update(changes)
    )


COMPUTED = "computation-differs"
CONFIGURATION: list[Entry] = [
    (what, "tiny-nvfp4", damage, "config.json", rules)
    for what, damage, rules in [
        ("other number of experts asked", config(num_experts_per_tok=1), COMPUTED),
        ("other base of the rotary embedding",
         config(rope_parameters={"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}), COMPUTED),
        ("other share of rotated dimensions",
         config(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}), COMPUTED),
        ("other epsilon of the norms", config(rms_norm_eps=1e-5), COMPUTED),
        ("other activation function", config(hidden_act="gelu"), COMPUTED),
        ("bias in attention", config(attention_bias=True), COMPUTED),
        ("other dtype to compute in", config(dtype="float16"), COMPUTED),
        ("top-k probabilities not normalised", config(norm_topk_prob=False), "engines-read-otherwise"),
        ("no output gate", config(attn_output_gate=False), "engines-read-otherwise"),
        ("dense layers in the place of experts", config(mlp_only_layers=[0]), "engines-read-otherwise"),
        ("experts in every second layer", config(decoder_sparse_step=2), "engines-read-otherwise"),
        ("two bases of the rotary embedding", config(rope_theta=5.0), "rope-contradicts"),
        ("other end of answers than generation_config's", config(eos_token_id=2), "ends-contradict"),
        ("no architecture", config(architectures=None), "architecture"),
        ("another model's type", config(model_type="llama"), "architecture"),
        ("fewer layers than kinds of layers", config(num_hidden_layers=2), "layer-types computation-differs"),
        ("no size of experts",
         lambda folder: edit_json(folder, "config.json", lambda c: c.pop("moe_intermediate_size")),
         "sizes computation-differs"),
        ("a size that is none", config(hidden_size=-64), "malformed-config"),
        ("groups of a pattern that means nothing", quantization(ignore=["re:.*nothing.*"]),
         "ignore-list-matches-nothing"),
        ("a KV cache that is not emulated",
         quantization(kv_cache_scheme={"num_bits": 4, "type": "int", "strategy": "tensor", "dynamic": False}),
         "kv-cache"),
    ]
] + [
    (what, "tiny-nvfp4", damage, subject, rules)
    for what, damage, subject, rules in [
        ("kinds of two layers exchanged",
         config(layer_types=["full_attention", "linear_attention", "linear_attention"]), "model.layers.0",
         "layer-types"),
        ("groups of other sizes declared", weights_declared(group_size=32), f"{EXPERT}.up_proj.weight",
         "declared-against-stored undecodable"),
        ("other bits declared", weights_declared(num_bits=8), f"{EXPERT}.up_proj.weight", "declared-against-stored"),
        ("no groups of weights", quantization(config_groups={}), f"{EXPERT}.up_proj", "not-as-declared"),
        ("integers declared", weights_declared(type="int"), f"{EXPERT}.up_proj.weight", "declared-against-stored"),
        ("inputs declared unquantized",
         lambda folder: edit_json(folder, "config.json", lambda c: c["quantization_config"]["config_groups"]["group_0"]
                                  .update(input_activations=None)), f"{EXPERT}.up_proj.input_global_scale",
         "activation-scale"),
        ("a group that means nothing",
         lambda folder: edit_json(folder, "config.json", lambda c: c["quantization_config"]["config_groups"].update(
             group_9={**c["quantization_config"]["config_groups"]["group_0"], "targets": ["re:.*nothing.*"]})),
         "group_9", "declared-scheme-absent"),
        ("a head declared tied that is not", config(tie_word_embeddings=True), "lm_head.weight",
         "tied-head unexpected-tensor"),
        ("a smaller vocabulary declared", config(vocab_size=63), "lm_head.weight", "shape"),
        ("fewer experts declared", config(num_experts=3), f"{MLP}.experts.3.up_proj.weight", "unexpected-tensor"),
        ("more experts declared", config(num_experts=5), f"{MLP}.experts.4.up_proj.weight", "missing-tensor"),
        ("a wider convolution declared", config(linear_conv_kernel_dim=5), f"{LINEAR}.conv1d.weight", "shape"),
    ]
]  # fmt: skip
ONE, TWO, INDEX = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"


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


def _cut(folder: Path, files: dict[str, str]) -> None:
    (folder / TWO).write_bytes((folder / TWO).read_bytes()[:-100])


def _exchange_files(folder: Path, files: dict[str, str]) -> None:
    (folder / ONE).rename(folder / "x")
    (folder / TWO).rename(folder / ONE)
    (folder / "x").rename(folder / TWO)


def _without_index(folder: Path) -> None:
    sharded(lambda folder, files: None)(folder)
    (folder / INDEX).unlink()


FILES: list[Entry] = [
    (what, "tiny-nvfp4", damage, subject, rules)
    for what, damage, subject, rules in [
        ("a file cut short", sharded(_cut), TWO, "unreadable-file"),
        ("a file of no bytes", sharded(lambda folder, files: (folder / TWO).write_bytes(b"")), TWO, "unreadable-file"),
        ("a file missing", sharded(lambda folder, files: (folder / ONE).unlink()), ONE, "missing-file"),
        ("two files under each other's name", sharded(_exchange_files), "lm_head.weight", "index"),
        ("an index of an older save, one tensor gone",
         sharded(lambda folder, files: files.update({"model.old.weight": ONE})), "model.old.weight", "index"),
        ("an index that leaves a tensor out", sharded(lambda folder, files: files.pop("lm_head.weight")),
         "lm_head.weight", "index"),
        ("an index that puts a tensor into the other file",
         sharded(lambda folder, files: files.update({"lm_head.weight": TWO})), "lm_head.weight", "index"),
        ("an index that leads out of the folder",
         sharded(lambda folder, files: files.update({"lm_head.weight": "../reference/model.safetensors"})), INDEX,
         "index"),
        ("files without their index", _without_index, WEIGHTS, "empty-file missing-file"),
        ("a file that belongs to nothing",
         sharded(lambda folder, files: (folder / "x.safetensors").write_bytes((folder / ONE).read_bytes())),
         "x.safetensors", "stray-file"),
    ]
]  # fmt: skip
ENTRIES = [*UNQUANTIZED, *QUANTIZED, *BESIDE, *FUSED_EXPERTS, *CONFIGURATION, *FILES]
