"""Integer weights in words of 32 bits, as GPTQ, AWQ and AutoRound declare them."""

import re
from pathlib import Path
from typing import Any

from q36eval.checkpoints.names import canonical
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.checkpoints.scheme import (
    PLAIN,
    Scheme,
    SchemeOf,
    TypeOf,
    check_known,
    check_patterns,
    names_of,
    table,
)
from q36eval.errors import UsageError

AUTO_ROUND = "auto-round"
"""As `quant_method`, or as `provider` of a configuration in another method's form."""
BITS = (2, 3, 4, 8)


def signs_scales(config: dict[str, Any]) -> bool:
    """Whether a producer uses a symmetric grid's one value more for the sign that its largest value has.

    AutoRound does (`quant_tensor_sym` in its auto_round/data_type/int.py): about half of its scales are negative.
    """
    return AUTO_ROUND in (config.get("quant_method"), config.get("provider"))


def gptq(folder: Path, config: dict[str, Any]) -> SchemeOf:
    """GPTQ in either version, with GPTQModel's `dynamic` rules.

    Raises:
        UsageError: a layout or a number of bits that is not decoded.
        CorruptCheckpointError: an entry of the wrong kind.
    """
    layout = config.get("checkpoint_format", "gptq")
    check_known(layout, ("gptq", "gptq_v2"), folder, f"GPTQ checkpoint_format {layout!r}")
    words = config.get("pack_dtype", "int32")
    check_known(words, ("int32",), folder, f"GPTQ packed into {words}")
    file = folder / "config.json"
    rules = table(file, "dynamic", config.get("dynamic") or {})
    for rule, overrides in rules.items():
        table(file, f"the rule {rule!r} of dynamic", overrides)
    check_patterns(folder, [rule.removeprefix("-:").removeprefix("+:") for rule in rules])

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        # GPTQ configurations do not list what was quantized: beside what the rules exclude, the stored parts say it.
        overrides = _gptq_rule(rules, module)
        if overrides is None or parts in ({"weight"}, {""}):
            return PLAIN
        settings = config | overrides
        bits, group_size = settings.get("bits"), settings.get("group_size", -1)
        check_known(bits, BITS, folder, f"GPTQ with {bits} bits")
        zero_offset = 0 if layout == "gptq_v2" else 1
        desc_act = bool(settings.get("desc_act"))
        options = {"bits": bits, "group_size": group_size, "desc_act": desc_act, "zero_offset": zero_offset}
        options |= {"sym": bool(settings.get("sym")), "signed_scales": signs_scales(config)}
        return Scheme("gptq", settings=tuple(options.items()))

    return resolve


def _gptq_rule(rules: dict[str, dict[str, Any]], module: str) -> dict[str, Any] | None:
    """What the first matching `dynamic` rule overrides; None where it excludes the module (`-:pattern`).

    Patterns match from the beginning of a name, as in GPTQModel's `dynamic_get`.
    """
    for pattern, overrides in rules.items():
        if any(matches_pattern(pattern.removeprefix("-:").removeprefix("+:"), name) for name in names_of(module)):
            return None if pattern.startswith("-:") else overrides
    return {}


def awq(folder: Path, config: dict[str, Any]) -> SchemeOf:
    """AutoAWQ's "gemm" layout; AutoAWQ and vLLM leave out what contains an entry of `modules_to_not_convert`.

    Raises:
        UsageError: a layout or a number of bits that is not decoded.
    """
    version = str(config.get("version") or config.get("format") or "gemm").lower()
    check_known(version, ("gemm",), folder, f"AWQ of version {version!r}")
    bits = config.get("bits", config.get("w_bit"))
    check_known(bits, (4,), folder, f"AWQ with {bits} bits")
    excluded = [str(name) for name in config.get("modules_to_not_convert") or []]
    sym = not config.get("zero_point", True)
    scheme = _awq_scheme(config.get("group_size", config.get("q_group_size", -1)), sym, config)

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        # as with GPTQ, the stored parts say what was quantized beside what is listed
        if parts in ({"weight"}, {""}) or any(entry in name for name in names_of(module) for entry in excluded):
            return PLAIN
        return scheme

    return resolve


def _awq_scheme(group_size: Any, sym: bool, config: dict[str, Any]) -> Scheme:
    options = {"bits": 4, "group_size": group_size, "zero_offset": 0, "sym": sym}
    return Scheme("awq", settings=tuple({**options, "signed_scales": signs_scales(config)}.items()))


_PACKINGS = {"auto_round:auto_gptq": 1, "auto_round:gptqmodel": 0, "auto_round": 0, "auto_round:auto_awq": None}
"""What is subtracted from stored zero-points by AutoRound's `packing_format`; None for AWQ's layout."""
_WIDE = 16


def auto_round(folder: Path, config: dict[str, Any], module_type: TypeOf) -> SchemeOf:
    """AutoRound's own configuration: the linear layers of some blocks, and `extra_config` for layers or patterns.

    A layer named in full goes before patterns, of patterns the first that is found in its name counts, and an entry
    is about its layer whether or not that is in a block (`get_layer_config` in auto_round/inference/convert_model.py).

    Raises:
        UsageError: a packing, a data type or a number of bits that is not decoded, or quantized activations.
        CorruptCheckpointError: an entry of the wrong kind.
    """
    packing = config.get("packing_format", "auto_round:auto_gptq")
    check_known(packing, _PACKINGS, folder, f"AutoRound's packing {packing!r}")
    if config.get("rotation_config"):
        raise UsageError("scheme-unsupported", f"{folder}: AutoRound's rotation_config is not emulated.")
    file = folder / "config.json"
    overrides = table(file, "extra_config", config.get("extra_config") or {})
    for name, entry in overrides.items():
        table(file, f"the entry {name!r} of extra_config", entry)
    blocks = config.get("block_name_to_quantize") or config.get("to_quant_block_names")
    blocks = [part.strip() for part in blocks.split(",")] if isinstance(blocks, str) else blocks
    patterns = [key for key in overrides if is_auto_round_pattern(key)]
    check_patterns(folder, patterns)

    def in_a_block(names: set[str]) -> bool:
        return blocks is None or any(name.startswith((block, canonical(block))) for name in names for block in blocks)

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        names = names_of(module)
        entry = _auto_round_entry(overrides, patterns, names)
        if entry is None and (module_type(module) != "Linear" or not in_a_block(names - {"lm_head"})):
            return PLAIN
        settings = config | {key: value for key, value in (entry or {}).items() if value is not None}
        return PLAIN if settings.get("bits") == _WIDE else _auto_round_scheme(folder, settings, _PACKINGS[packing])

    return resolve


def _auto_round_scheme(folder: Path, settings: dict[str, Any], zero_offset: int | None) -> Scheme:
    bits, kind = settings.get("bits"), settings.get("data_type", "int")
    check_known(kind, ("int",), folder, f"AutoRound's data type {kind!r}")
    inputs = settings.get("act_bits") or _WIDE
    if inputs < _WIDE:
        raise UsageError(
            "activations-unsupported",
            f"{folder}: AutoRound's activations of {inputs} bits are not emulated; known: 16.",
        )
    check_known(bits, BITS if zero_offset is not None else (4,), folder, f"AutoRound with {bits} bits so packed")
    sym, group_size = bool(settings.get("sym", True)), settings.get("group_size", -1)
    if zero_offset is None:
        return _awq_scheme(group_size, sym, settings)
    options = {"bits": bits, "group_size": group_size, "desc_act": False, "zero_offset": zero_offset, "sym": sym}
    return Scheme("gptq", settings=tuple({**options, "signed_scales": True}.items()))


def _auto_round_entry(overrides: dict[str, Any], patterns: list[str], names: set[str]) -> dict[str, Any] | None:
    """What `extra_config` says of a layer that is called by any of `names`, None where nothing.

    Raises:
        CorruptCheckpointError: a pattern does not come to an end.
    """
    exact = (overrides[key] for name in names for key in auto_round_names(name) if key in overrides)
    searched = (overrides[key] for key in patterns if any(matches_pattern(key, name, anywhere=True) for name in names))
    named = next(exact, None)
    return next(searched, None) if named is None else named


def is_auto_round_pattern(key: str) -> bool:
    """Whether a key of `extra_config` is looked for within names."""
    return _SPECIAL.search(key) is not None


_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")
"""What makes a key a pattern (vLLM's inc.py)."""


def auto_round_names(name: str) -> tuple[str, ...]:
    """By which keys a module is meant: its name, and what one of the text-only layout is called where a vision tower
    lies beside it."""
    return (name, f"model.language_model.{name.removeprefix('model.')}") if name.startswith("model.") else (name,)
