"""config.json: how it compares with the weights, with the files beside it and with the reference's."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from q36eval.checkpoints.inspection.findings import Finding, Section, Severity
from q36eval.checkpoints.reader import EXPERT_COUNTS, Checkpoint, experts_of
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.files import canonical_json

MOST_FILES = 3
FULL, LINEAR = "full_attention", "linear_attention"
Shapes = dict[str, tuple[int, ...]]


def text_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The text model's part of config.json."""
    settings = dict(config.get("text_config") or config)
    if config.get("tie_word_embeddings"):
        settings["tie_word_embeddings"] = True
    return settings


QWEN3_5 = re.compile(r"qwen3_(5(_moe)?(_text)?|next)")
"""The `model_type` of models whose layers are Gated DeltaNet but for every fourth: rules that hold for these alone."""


def is_of_qwen(settings: Mapping[str, Any]) -> bool:
    """Whether a text model's settings are of such a model."""
    return QWEN3_5.fullmatch(str(settings.get("model_type"))) is not None


def norm_centre(config: Mapping[str, Any]) -> float:
    """What a layer's norm multiplies by beside its weight: transformers' zero-centred norms add 1."""
    kind = str(text_settings(config).get("model_type"))
    return 1.0 if QWEN3_5.fullmatch(kind) or kind.startswith(("gemma", "nemotron")) else 0.0


def head_width(config: Mapping[str, Any]) -> int:
    """The width of a head of keys and values; 0 where the settings do not give it."""
    settings = text_settings(config)
    width, heads, hidden = (settings.get(name) for name in ("head_dim", "num_attention_heads", "hidden_size"))
    if isinstance(width, int):
        return width
    return hidden // heads if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 else 0


def layer_types(settings: Mapping[str, Any]) -> list[str]:
    """The kind of every layer, as declared or as `full_attention_interval` (4 by default) makes them."""
    declared = settings.get("layer_types")
    if declared is not None:
        return list(declared)
    interval = settings.get("full_attention_interval", 4)
    return [LINEAR if (layer + 1) % interval else FULL for layer in range(settings["num_hidden_layers"])]


NO_PART_OF_THE_COMPUTATION = (
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "output_router_logits",
    "pad_token_id",
    "quantization_config",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True)
class Honoured:
    """What is measured here whatever the entry says, what else measures the same, and what an engine does otherwise."""

    measured: Any
    what: str
    harmless: tuple[Any, ...] = (None,)


ENGINES_HONOUR: Mapping[str, Honoured] = {
    "norm_topk_prob": Honoured(
        True, "vLLM honours it, and does not divide the weights of the chosen experts by their sum", ()
    ),
    "attn_output_gate": Honoured(True, "vLLM honours it, and leaves the attention's output gate out", ()),
    "is_causal": Honoured(True, "vLLM honours it, and lets every token attend to those after it", ()),
    "qkv_bias": Honoured(False, "vLLM honours it, and adds biases to queries, keys and values"),
    "layer_scale": Honoured(False, "vLLM honours it, and scales what every layer gives"),
    "dual_chunk_attention_config": Honoured(
        None, "vLLM honours it, and computes the attention of long texts in chunks"
    ),
    "mlp_only_layers": Honoured([], "engines that take Qwen3-Next's layers put dense ones in the place of experts"),
    "decoder_sparse_step": Honoured(1, "engines that take Qwen3-Next's layers put dense ones in the place of experts"),
}
"""Entries that transformers does not read for this model and engines do (vLLM's qwen3_next.py in model_executor/models,
which its Qwen3.5 is made of). Where null is not harmless, an engine takes it for false."""


def _finding(rule: str, message: str, subject: str = "config.json", severity: Severity = Severity.BLOCKING) -> Finding:
    return Finding(section=Section.CONFIGURATION, rule=rule, severity=severity, subject=subject, message=message)


def configuration_findings(
    checkpoint: Checkpoint, units: Mapping[str, LogicalWeight], reference: Mapping[str, Any] | None
) -> list[Finding]:
    """Architecture, layer types, and every value that changes what the model computes."""
    settings = text_settings(checkpoint.config)
    findings = _architecture(checkpoint.config)
    if is_of_qwen(settings):
        findings += [*_layer_types(settings, units), *_read_otherwise(settings)]
    findings += [*_rope_contradictions(settings), *_ends(checkpoint), *_code(checkpoint)]
    if reference is not None:
        theirs = text_settings(reference)
        if theirs.get("tie_word_embeddings", True) and all(unit.tensor_class != "lm_head" for unit in units.values()):
            settings["tie_word_embeddings"] = True  # its head is its embeddings, or equals them
        findings += [*_compute_dtype(checkpoint.config, reference), *_computation(settings, theirs)]
    return findings


def _architecture(config: Mapping[str, Any]) -> list[Finding]:
    """The names of the model against each other; an unknown `model_type` is refused before."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    kind, named = config["model_type"], config.get("architectures")
    known = [
        names[kind]
        for names in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
        if kind in names
    ]
    findings = []
    if not isinstance(named, list) or not named:
        findings.append(
            _finding("architecture", f"architectures is {json.dumps(named)}: engines cannot tell the model.")
        )
    elif named[0] not in known:
        findings.append(_finding("architecture", f"architectures names {named[0]!r}; known: {', '.join(known)}."))
    is_nested = "text_config" in CONFIG_MAPPING[kind].sub_configs
    if isinstance(config.get("text_config"), dict) != is_nested:
        where = "under text_config" if is_nested else "in config.json itself"
        message = f"model_type {kind!r} is read {where}, where nothing is: defaults are taken."
        findings.append(_finding("architecture", message))
    return findings


def _dtype(config: Mapping[str, Any]) -> str | None:
    """What the model computes in, wherever the config's age put it."""
    for place in (config.get("text_config") or {}, config):
        named = place.get("dtype") or place.get("torch_dtype")
        if named is not None:
            return str(named).removeprefix("torch.")
    return None


def _compute_dtype(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Finding]:
    """Advisory: exporters of INT4 write float16 whatever they were given, and both sides are measured in BF16."""
    one, other = _dtype(mine), _dtype(theirs)
    if one == other or other is None:
        return []
    given = "no dtype is given" if one is None else f"dtype is {one}"
    message = f"{given}, the reference's is {other}: an engine may compute in another dtype than is measured here."
    return [_finding("dtype-differs", message, severity=Severity.ADVISORY)]


def _layer_types(settings: Mapping[str, Any], units: Mapping[str, LogicalWeight]) -> list[Finding]:
    """Each layer's declared kind against the attention tensors stored for it."""
    try:
        kinds = layer_types(settings)
    except (KeyError, TypeError):
        return [_finding("layer-types", "neither layer_types nor num_hidden_layers is given.")]
    findings = []
    if len(kinds) != settings.get("num_hidden_layers", len(kinds)):
        message = f"layer_types has {len(kinds)} entries for {settings['num_hidden_layers']} layers."
        findings.append(_finding("layer-types", message))
    stored = {
        (part[2], kind)
        for name in units
        for part in [name.split(".")]
        for kind, module in ((FULL, "self_attn"), (LINEAR, "linear_attn"))
        if len(part) > 3 and part[3] == module
    }
    for number, declared in enumerate(kinds):
        kept = [kind for kind in (FULL, LINEAR) if (str(number), kind) in stored]
        if kept and declared not in kept:
            message = f"layer {number} is declared {declared} and holds the tensors of {kept[0]}."
            findings.append(_finding("layer-types", message, f"model.layers.{number}"))
    return findings


def _computation(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Finding]:
    """Values that change the computation; one given on one side only is compared with transformers' default."""
    if _by_layer_type(mine) != _by_layer_type(theirs):  # of one model, as older and newer versions write it
        mine, theirs = _with_rope_as_read(mine), _with_rope_as_read(theirs)
    one, other = _comparable(mine), _comparable(theirs)
    if (experts_of(mine) or 0) < (experts_of(theirs) or 0):  # pruned, which a finding of its own says
        one, other = ({key: value for key, value in each.items() if key not in EXPERT_COUNTS} for each in (one, other))
    keys = sorted({*one, *other})
    unknown: frozenset[str] = frozenset()
    if any((one.get(key) is None) != (other.get(key) is None) for key in keys):
        unknown = _unknown({*one} ^ {*other}, theirs) - _rotary(mine) - _rotary(theirs)
        one, other = {**_defaults(keys, mine), **_given(one)}, {**_defaults(keys, theirs), **_given(other)}
    return [
        _finding(
            "computation-differs",
            f"{key} is {json.dumps(one.get(key))}, the reference's {json.dumps(other.get(key))}"
            f"{' (transformers knows no such entry)' if key in unknown else ''}.",
            severity=Severity.ADVISORY if key in unknown else Severity.BLOCKING,
        )
        for key in keys
        if one.get(key) != other.get(key)
    ]


def _by_layer_type(settings: Mapping[str, Any]) -> bool:
    """Whether the rotary embedding is written for each kind of layer."""
    return any(isinstance(value, dict) for value in (settings.get("rope_parameters") or {}).values())


def _with_rope_as_read(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the rotary embedding as transformers reads it, wherever it was written."""
    given = {key: value for key, value in settings.items() if key not in ("quantization_config", "auto_map")}
    read = _text_class(settings).from_dict(given).to_dict()
    older = (*ROPE, "rope_local_base_freq")
    kept = {key: value for key, value in settings.items() if key not in older}
    return kept | {"rope_parameters": read.get("rope_parameters")}


def _text_class(settings: Mapping[str, Any]) -> Any:
    """transformers' configuration of a text model with such settings."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[settings["model_type"]]
    return kind.sub_configs.get("text_config", kind)


def _unknown(keys: set[str], settings: Mapping[str, Any]) -> frozenset[str]:
    """Those that transformers' configuration has no entry for, such as `attn_output_gate` in published ones."""
    bare = _text_class(settings)().to_dict()
    return frozenset(keys - {*bare, *_comparable(bare)})


def _rotary(settings: Mapping[str, Any]) -> set[str]:
    """Entries of the rotary embedding, of which transformers lists some only where they are given."""
    return {*ROPE, *(settings.get("rope_scaling") or {}), *(settings.get("rope_parameters") or {})}


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _read_otherwise(settings: Mapping[str, Any]) -> list[Finding]:
    """Entries by which an engine serves another model than the one that is measured."""
    return [
        _finding(
            "engines-read-otherwise",
            f"{key} is {json.dumps(settings[key])}: transformers does not read it, and this gate measures "
            f"{json.dumps(entry.measured)}; {entry.what}.",
        )
        for key, entry in ENGINES_HONOUR.items()
        if key in settings and settings[key] not in (entry.measured, *entry.harmless)
    ]


def _rope_contradictions(settings: Mapping[str, Any]) -> list[Finding]:
    """One value of the rotary embedding given twice, differently: every engine takes the one it looks at first."""
    places: dict[str, Mapping[str, Any]] = {
        "config.json": settings,
        "rope_scaling": settings.get("rope_scaling") or {},
        "rope_parameters": settings.get("rope_parameters") or {},
    }
    for name in ("rope_scaling", "rope_parameters"):
        kind = {"rope_type": places[name]["type"]} if "type" in places[name] else {}  # its older name
        places |= {f"type of {name}": kind, name: {key: places[name][key] for key in places[name] if key != "type"}}
    findings = []
    for key in sorted({key for place in places.values() for key in place if key in ROPE or place is not settings}):
        if key in ("rope_scaling", "rope_parameters"):
            continue
        given = {name: place[key] for name, place in places.items() if place.get(key) is not None}
        if len({canonical_json(value) for value in given.values()}) > 1:
            told = " and ".join(f"{json.dumps(value)} in {name}" for name, value in given.items())
            findings.append(_finding("rope-contradicts", f"{key} is {told}: engines differ in which one they take."))
    return findings


def _ends(checkpoint: Checkpoint) -> list[Finding]:
    """The tokens at which an answer ends: engines take those of either file, this gate those of generation_config."""
    name = "generation_config.json"
    if name not in checkpoint.held:
        return []
    with suppress(CorruptCheckpointError):  # reported with the text files
        stops = _ids(checkpoint.held.json(name).get("eos_token_id"))
        of_the_text = _ids(text_settings(checkpoint.config).get("eos_token_id"))
        declared = of_the_text | _ids(checkpoint.config.get("eos_token_id"))  # engines look into one or the other
        if stops and not declared <= stops:
            message = (
                f"eos_token_id is {sorted(declared)} in config.json and {sorted(stops)} in {name}: an engine that "
                f"reads the former ends answers elsewhere than this gate."
            )
            return [_finding("ends-contradict", message)]
    return []


def _ids(given: Any) -> set[int]:
    entries = given if isinstance(given, list) else [given]
    return {entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool)}


def _code(checkpoint: Checkpoint) -> list[Finding]:
    """Python that comes with a checkpoint: nothing here runs it, and a tool that trusts it runs what was not judged."""
    named = ["config.json"] if "auto_map" in checkpoint.config else []
    with suppress(CorruptCheckpointError, UsageError):  # reported with the text files
        settings = checkpoint.held.json("tokenizer_config.json")
        named += ["tokenizer_config.json"] if "auto_map" in settings else []
    files = sorted(file.name for file in checkpoint.path.glob("*.py"))
    if not named and not files:
        return []
    what = [*(f"auto_map in {name}" for name in named), *files[:MOST_FILES]]
    more = f" and {len(files) - MOST_FILES} more files" if len(files) > MOST_FILES else ""
    message = f"it contains its own code ({', '.join(what)}{more}), which q36eval does not run; other tools may."
    return [_finding("own-code", message, what[-1].removeprefix("auto_map in "), Severity.ADVISORY)]


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values that matter, with the rotary ones gathered from wherever the config's age put them."""
    kept = {
        key: value
        for key, value in settings.items()
        if key not in (*NO_PART_OF_THE_COMPUTATION, *ROPE, *(ENGINES_HONOUR if is_of_qwen(settings) else ()))
        and not key.startswith("mtp_")
    }
    if "model_type" in kept:  # a wrapper's text model may be named by either; a GGUF calls Mistral a Llama
        kind = str(kept["model_type"]).removesuffix("_text")
        kept["model_type"] = "llama" if kind == "mistral" else kind
        if kind == "mistral" and "sliding_window" not in kept:  # a Llama has none, and transformers gives it one
            kept["sliding_window"] = _text_class(settings)().sliding_window
    if is_of_qwen(settings) and ("num_hidden_layers" in settings or "layer_types" in settings):
        kept["layer_types"] = layer_types(settings)
        kept.pop("full_attention_interval", None)
    rope = dict(settings.get("rope_scaling") or {}) | dict(settings.get("rope_parameters") or {})
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    for key in ("rope_theta", "partial_rotary_factor"):
        rope.setdefault(key, settings.get(key))
    return kept | {key: value for key, value in rope.items() if value is not None}


def _defaults(keys: list[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in settings.items() if key not in ("quantization_config", "auto_map")}
    full = _comparable(_text_class(settings).from_dict(given).to_dict())
    return {key: full.get(key) for key in keys}
