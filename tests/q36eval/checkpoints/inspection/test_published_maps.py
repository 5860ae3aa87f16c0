"""Quantization maps, exclusion lists and settings as exporters publish them.

The untouched variant decodes as before and raises no alarm; real damage in the same place blocks.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.inspection import Finding, Severity, inspect_checkpoint
from q36eval.checkpoints.inspection.tokenizers import text_findings
from q36eval.checkpoints.open_checkpoints import hold
from q36eval.checkpoints.weights import index_weights

from .conftest import Copy, Whole
from .damage import OWN_FILE, SANDBOX, WEIGHTS, Damage, Tensors, config, edit, edit_json, edit_tensors, one, without

Settings = dict[str, Any]
O_PROJ, GATE = "model.layers.0.self_attn.o_proj", "model.layers.0.mlp.shared_expert_gate"
UP, TWIN = "model.layers.0.mlp.experts.1.up_proj", "model.layers.0.mlp.experts.0.up_proj"
MIXED, NVFP4, FP8, FINE = "modelopt-mixed", "modelopt-nvfp4-default", "modelopt-fp8-default", "tf-fp8-per-expert"
STATIC, DYNAMIC, INT8 = "ct-fp8-tensor-static", "ct-fp8-channel-dynamic", "ct-w8a8-int8"
EXCLUDED, UNLISTED, UNUSED = "excluded-and-quantized", "unquantized-and-not-excluded", "input-scales-unused"
DEAD = "ignore-entry-matches-nothing"


def decoded(folder: Path) -> dict[str, tuple[Tensor, ActivationScheme | None]]:
    weights = index_weights(open_checkpoint(folder)).weights
    return {name: (weight.decode(weight.read_parts()), weight.activations()) for name, weight in weights.items()}


def rules(findings: Iterable[Finding], severity: Severity) -> set[str]:
    return {finding.rule for finding in findings if finding.severity is severity}


# ---- the changes


def settings(change: Callable[[Settings], object]) -> Damage:
    """A change of both declarations, that of config.json and Model Optimizer's own."""

    def changed(folder: Path) -> None:
        edit_json(folder, "config.json", lambda document: change(document["quantization_config"]))
        if (folder / OWN_FILE).exists():
            edit_json(folder, OWN_FILE, lambda document: change(document["quantization"]))

    return changed


def layers(change: Callable[[Settings], Settings]) -> Damage:
    return settings(lambda given: given.update(quantized_layers=change(given["quantized_layers"])))


def renamed(old: str, new: str) -> Damage:
    return layers(lambda given: {name.replace(old, new, 1): entry for name, entry in given.items()})


def as_fused(given: Settings) -> Settings:
    names = (("q_proj", "qkv_proj"), ("shared_expert.gate_proj", "shared_expert.gate_up_proj"))
    fused = {name.replace(*pair): entry for name, entry in given.items() for pair in names if name.endswith(pair[0])}
    gone = ("q_proj", "k_proj", "v_proj", "shared_expert.gate_proj", "shared_expert.up_proj")
    return {name: entry for name, entry in given.items() if not name.endswith(gone)} | fused


def as_globs(given: Settings) -> Settings:
    fp8 = given[O_PROJ]
    return {"model.layers.*.self_attn.*": fp8, "*shared_expert.*_proj": fp8, "model.layers.0.mlp.experts": NVFP4_LAYER}


NVFP4_LAYER = {"quant_algo": "nvfp4", "group_size": 16}


def without_map(folder: Path) -> None:
    """config.json keeps its groups alone, and no other file declares anything."""
    edit_json(folder, "config.json", lambda document: document["quantization_config"].pop("quantized_layers"))
    (folder / OWN_FILE).unlink()


def own_file_alone(folder: Path) -> None:
    edit_json(folder, "config.json", lambda document: document.pop("quantization_config"))
    edit_json(folder, OWN_FILE, lambda own: own.update(own.pop("quantization")))


def in_a_table(folder: Path) -> None:
    edit_json(folder, "config.json", lambda own: own.update(quantization_config={"quantization": own[KEY]}))


KEY, LISTS = "quantization_config", ("ignore", "exclude_modules", "modules_to_not_convert")


def excluding(*names: str) -> Damage:
    """These in the place of what is excluded."""
    return settings(lambda given: given.update({key: [*names] for key in LISTS if key in given}))


def excluded_too(name: str) -> Damage:
    def add(given: Settings) -> None:
        key = next((key for key in LISTS if key in given), LISTS[0])
        given[key] = [*given.get(key, []), name]

    return settings(add)


def groups(change: Callable[[Settings], object]) -> Damage:
    return settings(lambda given: [change(group) for group in given.get("config_groups", {}).values()])


def inputs(**changes: Any) -> Damage:
    return groups(lambda group: group["input_activations"].update(changes))


def no_format(folder: Path) -> None:
    groups(lambda group: group.pop("format"))(folder)
    settings(lambda given: given.pop("format"))(folder)


def input_scales(part: str) -> Damage:
    def add(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(("weight_scale", "weight_scale_inv"))]:
            tensors[f"{name.rpartition('.')[0]}.{part}"] = torch.tensor(0.02)

    return edit(add)


def kept(module: str) -> Damage:
    """A module as it is in the reference."""

    def restore(folder: Path) -> None:
        original = load_file(folder.parent / "reference" / WEIGHTS)[f"{module}.weight"]
        without(*(f"{module}.{part}" for part in ("weight", "weight_scale", "weight_scale_2", "input_scale")))(folder)
        without(f"{module}.weight_scale_inv")(folder)
        edit_tensors(folder, lambda tensors: tensors.update({f"{module}.weight": original}))

    return restore


def exchanged(tensors: Tensors) -> None:
    tensors[f"{UP}.weight"], tensors[f"{TWIN}.weight"] = tensors[f"{TWIN}.weight"], tensors[f"{UP}.weight"]


def wrapped(tensors: Tensors) -> None:
    for name in [name for name in tensors if name.startswith("model.")]:
        tensors[f"model.language_model.{name.removeprefix('model.')}"] = tensors.pop(name)


LINEAR = groups(lambda group: group.update(targets=["Linear"]))
WRAPPERS = ("model.language_model.", "language_model.model.", "language_model.", "")


def listed(prefix: str) -> Damage:
    return excluding("lm_head", *(name.replace("model.", prefix, 1) for name in ("model.layers.0.mlp.gate", GATE)))


# ---- (what, checkpoint, changes, advisories)
Variant = tuple[str, str, tuple[Damage, ...], set[str]]
LOWER = layers(
    lambda given: {name: entry | {"quant_algo": entry["quant_algo"].lower()} for name, entry in given.items()}
)
MAPS: list[Variant] = [
    *((f"names that begin with {prefix!r}", MIXED, (renamed("model.", prefix),), set()) for prefix in WRAPPERS),
    ("algorithms in lower case", MIXED, (LOWER, settings(lambda own: own.update(quant_algo="mixed_precision"))), set()),
    ("names of fused modules", MIXED, (layers(as_fused),), set()),
    ("globs", MIXED, (layers(as_globs),), set()),
    ("config groups alone", MIXED, (without_map,), set()),
    ("the map in its own file alone, at the top", MIXED, (own_file_alone,), set()),
    ("under `quantization` in config.json", MIXED, (in_a_table,), set()),
    ("vLLM's name of the method", NVFP4, (lambda folder: method(folder, "modelopt_fp4"),), set()),
    ("groups without a format", INT8, (no_format,), set()),
    ("groups without a format", "ct-nvfp4", (no_format,), set()),
]
INPUTS: list[Variant] = [
    ("inputs declared dynamic, with their global scale", "ct-nvfp4", (inputs(dynamic=True),), set()),
    ("inputs declared static, with their global scale", "ct-nvfp4", (inputs(dynamic=False),), set()),
    ("groups that say dynamic beside a static algorithm", FP8, (inputs(dynamic=True),), set()),
    ("static scales that are left over", DYNAMIC, (input_scales("input_scale"),), {UNUSED}),
    ("static scales that are left over", FINE, (input_scales("activation_scale"),), {UNUSED}),
]
LISTED: list[Variant] = [
    ("a module that is not listed", NVFP4, (excluding("lm_head"),), {UNLISTED}),
    ("a module that is not listed", FINE, (excluding("lm_head"),), {UNLISTED}),
    ("a name longer than the module's", FINE, (excluding("lm_head", f"{GATE}.linear"),), {UNLISTED, DEAD}),
    *((f"{O_PROJ} is excluded", name, (excluded_too(O_PROJ),), {EXCLUDED}) for name in (MIXED, NVFP4, FP8, FINE)),
    *(("all is excluded", name, (excluded_too("model*"),), {EXCLUDED}) for name in (NVFP4, "modelopt-mxfp8")),
    ("all of a wrapper is excluded", FP8, (edit(wrapped), excluded_too("language_model*")), {EXCLUDED}),
    *((f"names that begin with {prefix!r}", FP8, (listed(prefix),), set()) for prefix in WRAPPERS),
    *((f"names that begin with {prefix!r}", INT8, (LINEAR, listed(prefix)), set()) for prefix in WRAPPERS),
    ("stored names of a wrapper", INT8, (edit(wrapped), LINEAR, listed("language_model.model.")), set()),
    ("globs of a wrapper", FP8, (excluding("*lm_head", "language_model*gate"),), set()),
    ("modules that a text model lacks", INT8, (excluding("re:vision_tower.*"),), {DEAD}),
]


def method(folder: Path, name: str) -> None:
    edit_json(folder, "config.json", lambda document: document[KEY].update(quant_method=name))


@pytest.mark.parametrize(("what", "checkpoint", "changes", "advisories"), [*MAPS, *INPUTS, *LISTED])
def test_a_published_spelling_is_read_as_what_is_stored(
    what: str, checkpoint: str, changes: tuple[Damage, ...], advisories: set[str], whole: Whole, copy_of: Copy
) -> None:
    folder, reference = copy_of(checkpoint, *changes)
    found = inspect_checkpoint(folder, reference, weights_workers=1)
    assert not found.blocking
    assert rules(found.findings, Severity.ADVISORY) == advisories
    mine, theirs = decoded(folder), decoded(whole(checkpoint)[0])
    assert mine.keys() == theirs.keys()
    for name, (weight, activations) in mine.items():
        assert torch.equal(weight, theirs[name][0]), name
        assert activations == theirs[name][1], name


# ---- (what, checkpoint, changes, subject, blocking rule)
NOT_AS_DECLARED, BEYOND = "not-as-declared", "beyond-scheme"
LOST = without(f"{O_PROJ}.weight_scale", f"{O_PROJ}.weight_scale_inv")
FLIPPED, NEGATED = one(f"{UP}.weight_packed", lambda t: t.flip(0)), one(f"{GATE}.weight", torch.neg)
FORGOTTEN = layers(lambda given: {name: entry for name, entry in given.items() if name != O_PROJ})
OTHER_ALGORITHM = layers(lambda given: given | {O_PROJ: NVFP4_LAYER})
NO_GLOBAL_SCALE, LEFT_OVER = without("input_global_scale"), input_scales("input_scale")
DAMAGED = [
    ("a layer lost from the map", MIXED, (FORGOTTEN,), O_PROJ, NOT_AS_DECLARED),
    ("another algorithm in the map", MIXED, (OTHER_ALGORITHM,), O_PROJ, NOT_AS_DECLARED),
    ("no format, and rows in another order", "ct-nvfp4", (no_format, FLIPPED), UP, BEYOND),
    ("dynamic, without the global scale", "ct-nvfp4", (inputs(dynamic=True), NO_GLOBAL_SCALE), UP, "activation-scale"),
    ("static, without scales", STATIC, (without("input_scale"),), UP, "activation-scale"),
    ("left-over scales, and values exchanged", DYNAMIC, (LEFT_OVER, edit(exchanged)), UP, BEYOND),
    ("an FP8 weight whose scale is lost", FP8, (LOST,), O_PROJ, NOT_AS_DECLARED),
    ("an FP8 weight whose scale is lost", FINE, (LOST,), O_PROJ, NOT_AS_DECLARED),
    ("an excluded FP8 weight whose scale is lost", FP8, (LOST, excluded_too(O_PROJ)), O_PROJ, NOT_AS_DECLARED),
    ("one expert unquantized and not listed", NVFP4, (kept(UP),), UP, "expert-left-out"),
    ("a module that is not listed", INT8, (kept(O_PROJ),), O_PROJ, NOT_AS_DECLARED),
    ("all excluded, and values exchanged", NVFP4, (excluded_too("model*"), edit(exchanged)), UP, BEYOND),
    ("names of a wrapper, and other values", FP8, (listed(WRAPPERS[0]), NEGATED), GATE, "unquantized-differs"),
    ("a list that matches nothing", INT8, (excluding("re:nothing.*"),), "config.json", "ignore-list-matches-nothing"),
]


@pytest.mark.parametrize(("what", "checkpoint", "changes", "subject", "rule"), DAMAGED)
def test_damage_in_the_same_place_blocks(
    what: str, checkpoint: str, changes: tuple[Damage, ...], subject: str, rule: str, copy_of: Copy
) -> None:
    folder, reference = copy_of(checkpoint, *changes)
    found = inspect_checkpoint(folder, reference, weights_workers=1)
    assert rule in {finding.rule for finding in found.blocking if finding.subject.startswith(subject)}


# ---- settings beside the quantization
OLD: Settings = {"rope_theta": 5e6, "rope_scaling": None, "partial_rotary_factor": 0.25}
NEW: Settings = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.25}}
NO_BASE: Settings = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}


@pytest.mark.parametrize(
    ("mine", "theirs", "blocking"),
    [
        (OLD, NEW, set()),
        (NEW, OLD, set()),
        (OLD | NEW, NEW, set()),
        (NEW | {"rope_theta": 1e4}, NEW, {"rope-contradicts"}),
        (NO_BASE, NEW, {"computation-differs"}),
        (NO_BASE, OLD, {"computation-differs"}),
        ({}, OLD, {"computation-differs"}),
    ],
)
def test_both_forms_of_the_rotary_embedding_are_one_setting(
    mine: Settings, theirs: Settings, blocking: set[str], copy_of: Copy, tmp_path: Path
) -> None:
    folder, original = copy_of("tiny-plain")
    reference = Path(shutil.copytree(original, tmp_path / "other"))
    for place, rope in ((folder, mine), (reference, theirs)):
        edit_json(place, "config.json", lambda document: [document.pop(key, None) for key in (*OLD, *NEW)])
        config(**rope)(place)
    assert rules(inspect_checkpoint(folder, reference).findings, Severity.BLOCKING) == blocking


START, END = "<|im_start|>", "<|im_end|>"


@pytest.mark.parametrize("in_both_files", [True, False])
def test_tokens_of_two_lists_stay_one_id_each(in_both_files: bool, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SANDBOX / "bf16", tmp_path / "copy"))
    both = {"additional_special_tokens": [START, END], "extra_special_tokens": [END]}
    edit_json(folder, "tokenizer_config.json", lambda document: document.update(both))
    if not in_both_files:
        edit_json(
            folder,
            "tokenizer.json",
            lambda own: own.update(added_tokens=[t for t in own["added_tokens"] if t["content"] != START]),
        )
    for reference in (None, hold(SANDBOX / "bf16")):
        lost = rules(text_findings(hold(folder), reference, None), Severity.BLOCKING)
        assert lost == (
            set() if in_both_files else {"special-token-lost"} | ({"tokenizer-differs"} if reference else set())
        )
