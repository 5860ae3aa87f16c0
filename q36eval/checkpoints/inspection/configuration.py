"""config.json against the file beside it and against the reference's."""

import json
from collections.abc import Mapping
from typing import Any

from q36eval.checkpoints.inspection.expected import FULL, LINEAR, layer_types, text_settings
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity
from q36eval.checkpoints.inspection.units import Unit
from q36eval.checkpoints.reader import Checkpoint
from q36eval.errors import Q36Error

ARCHITECTURES = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
NESTED = "qwen3_5_moe"
MODEL_TYPES = ("qwen3_5_moe_text", NESTED)
NO_PART_OF_THE_COMPUTATION = (
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "model_type",
    "output_router_logits",
    "pad_token_id",
    "quantization_config",
    "router_aux_loss_coef",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")


def _finding(rule: str, message: str, subject: str = "config.json", severity: Severity = Severity.BLOCKING) -> Finding:
    return Finding(section=Section.CONFIGURATION, rule=rule, severity=severity, subject=subject, message=message)


def configuration_findings(
    checkpoint: Checkpoint, units: Mapping[str, Unit], reference: Mapping[str, Any] | None
) -> list[Finding]:
    """Architecture, layer types, tied head, and every value that changes what the model computes."""
    settings = text_settings(checkpoint.config)
    found = [*_architecture(checkpoint.config), *_layer_types(settings, units), *_tied_head(settings, units)]
    if reference is not None:
        found += [*_compute_dtype(checkpoint.config, reference), *_computation(settings, text_settings(reference))]
    return found


def _architecture(config: Mapping[str, Any]) -> list[Finding]:
    found = []
    named = config.get("architectures")
    if not isinstance(named, list) or not named:
        found.append(_finding("architecture", f"architectures is {json.dumps(named)}: engines cannot tell the model."))
    elif named[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        found.append(_finding("architecture", f"architectures names {named[0]!r}; known: {known}."))
    if config.get("model_type") not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        found.append(_finding("architecture", f"model_type is {config.get('model_type')!r}; known: {known}."))
    elif isinstance(config.get("text_config"), dict) != (config["model_type"] == NESTED):
        where = "under text_config" if config["model_type"] == NESTED else "in config.json itself"
        message = f"model_type {config['model_type']!r} is read {where}, where nothing is: defaults are taken."
        found.append(_finding("architecture", message))
    return found


def _dtype(config: Mapping[str, Any]) -> str | None:
    """What the model computes in, wherever the config's age put it."""
    for place in (config.get("text_config") or {}, config):
        named = place.get("dtype") or place.get("torch_dtype")
        if named is not None:
            return str(named).removeprefix("torch.")
    return None


def _compute_dtype(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Finding]:
    one, other = _dtype(mine), _dtype(theirs)
    if one == other or other is None:
        return []
    if one is None:
        message = f"no dtype is given, the reference's is {other}: engines choose one."
        return [_finding("computation-differs", message, severity=Severity.ADVISORY)]
    return [_finding("computation-differs", f"dtype is {one}, the reference's {other}.")]


def _layer_types(settings: Mapping[str, Any], units: Mapping[str, Unit]) -> list[Finding]:
    """Each layer's declared kind against the attention tensors stored for it."""
    try:
        kinds = layer_types(settings)
    except (KeyError, TypeError):
        return [_finding("layer-types", "neither layer_types nor num_hidden_layers is given.")]
    found = []
    if len(kinds) != settings.get("num_hidden_layers", len(kinds)):
        message = f"layer_types has {len(kinds)} entries for {settings['num_hidden_layers']} layers."
        found.append(_finding("layer-types", message))
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
            found.append(_finding("layer-types", message, f"model.layers.{number}"))
    return found


def _tied_head(settings: Mapping[str, Any], units: Mapping[str, Unit]) -> list[Finding]:
    """A tied head that is stored as well must be the embeddings, or it is silently ignored."""
    head, embeddings = units.get("lm_head.weight"), units.get("model.embed_tokens.weight")
    if not settings.get("tie_word_embeddings") or head is None or embeddings is None:
        return []
    import torch

    try:
        one, other = (unit.decode(unit.read_parts()).float() for unit in (head, embeddings))
    except (Q36Error, RuntimeError):
        return []  # reported by the pass over all weights
    if torch.equal(one, other):
        return []
    message = "tie_word_embeddings is set, and the stored lm_head is not the embeddings: it would be ignored."
    return [_finding("tied-head", message, "lm_head.weight")]


def _computation(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Finding]:
    """Values that change the computation; one given on one side only is compared with transformers' default."""
    one, other = _comparable(mine), _comparable(theirs)
    keys = sorted({*one, *other})
    unknown: frozenset[str] = frozenset()
    if any((one.get(key) is None) != (other.get(key) is None) for key in keys):
        unknown = _unknown({*one} ^ {*other}) - _rotary(mine) - _rotary(theirs)
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


def _unknown(keys: set[str]) -> frozenset[str]:
    """Those that transformers' configuration has no entry for, such as `attn_output_gate` in published ones."""
    from transformers import Qwen3_5MoeTextConfig

    bare = Qwen3_5MoeTextConfig().to_dict()
    return frozenset(keys - {*bare, *_comparable(bare)})


def _rotary(settings: Mapping[str, Any]) -> set[str]:
    """Entries of the rotary embedding, of which transformers lists some only where they are given."""
    return {*ROPE, *(settings.get("rope_scaling") or {}), *(settings.get("rope_parameters") or {})}


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The values that matter, with the rotary ones gathered from wherever the config's age put them."""
    kept = {
        key: value
        for key, value in settings.items()
        if key not in NO_PART_OF_THE_COMPUTATION and key not in ROPE and not key.startswith("mtp_")
    }
    if "num_hidden_layers" in settings or "layer_types" in settings:
        kept["layer_types"] = layer_types(settings)
        kept.pop("full_attention_interval", None)
    rope = dict(settings.get("rope_scaling") or {}) | dict(settings.get("rope_parameters") or {})
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type") or "default"
    for key in ("rope_theta", "partial_rotary_factor"):
        rope.setdefault(key, settings.get(key))
    return kept | {key: value for key, value in rope.items() if value is not None}


def _defaults(keys: list[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    from transformers import Qwen3_5MoeTextConfig

    given = {key: value for key, value in settings.items() if key not in ("quantization_config", "auto_map")}
    full = _comparable(Qwen3_5MoeTextConfig.from_dict(given).to_dict())
    return {key: full.get(key) for key in keys}
