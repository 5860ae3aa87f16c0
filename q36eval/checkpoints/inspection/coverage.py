"""What is quantized, as declared and as stored, how much of it by which scheme, and what the family's cards warn of."""

import fnmatch
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

from q36eval.checkpoints.inspection.findings import (
    UNQUANTIZED,
    CoverageRow,
    Finding,
    Promise,
    Section,
    Severity,
    finding,
    some_of,
)
from q36eval.checkpoints.inspection.stored_schemes import (
    declared_label,
    kind_of,
    stored_kind,
    stored_label,
)
from q36eval.checkpoints.integer_schemes import auto_round_names, is_auto_round_pattern
from q36eval.checkpoints.names import aliases, beginnings, canonical, endings, fused_place, split_part
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import is_glob
from q36eval.checkpoints.schemes import OWN_FILE, is_left_by_mxfp4, own_quantization
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.schemes import scheme_name


def ignore_patterns(quantization: Mapping[str, Any]) -> list[str]:
    """The patterns of what is to stay unquantized, as the configuration's method writes them."""
    method = quantization.get("quant_method")
    if method == "gptq":
        dynamic = quantization.get("dynamic") or {}
        return [pattern for pattern in dynamic if pattern.startswith("-:")]
    if method == "auto-round":
        extra = quantization.get("extra_config") or {}
        return [key for key, entry in extra.items() if isinstance(entry, dict) and entry.get("bits") == 16]
    keys = ("ignore", "exclude_modules", "modules_to_not_convert")
    return next((list(quantization[key]) for key in keys if quantization.get(key)), [])


_CLASSES = {"Linear", "Embedding"}
"""Torch classes that a pattern may mean: every model has some of each."""


def dead_patterns(quantization: Mapping[str, Any], modules: Iterable[str]) -> list[str]:
    """Ignore patterns that mean none of the stored modules, in either published layout; a malformed pattern means
    nothing either."""
    method = quantization.get("quant_method")
    names = sorted({name for module in modules for name in (module, canonical(module))})
    others = sorted({other for name in names if ".experts." not in name for other in aliases(name)})
    in_full = {called for name in names for called in _called(method, name)} | _CLASSES | {*others}
    lines = "\n".join(names)

    def is_dead(pattern: str) -> bool:
        if method == "awq":
            return pattern not in lines and canonical(pattern) not in lines
        means = _search(method, pattern)
        try:
            if means is None:
                return in_full.isdisjoint((pattern, canonical(pattern)))
            return not any(map(means, names)) and not any(map(means, others))
        except CorruptCheckpointError:
            return True

    return [pattern for pattern in ignore_patterns(quantization) if is_dead(pattern)]


def _called(method: str | None, name: str) -> Iterable[str]:
    """What means that module where it is written out in full."""
    if method == "auto-round":
        return auto_round_names(name)
    # fine-grained FP8 lists modules and whole subtrees by name
    return (*beginnings(name), *endings(name)) if method == "fp8" else (name,)


def _search(method: str | None, pattern: str) -> Callable[[str], bool] | None:
    """How names are compared with a pattern; None where it is a name written out in full."""
    if method == "gptq":
        return partial(matches_pattern, pattern.removeprefix("-:"))
    if method == "mxfp4":
        return partial(is_left_by_mxfp4, pattern)
    if method == "modelopt":
        return partial(fnmatch.fnmatchcase, pat=pattern) if is_glob(pattern) else None
    if method == "auto-round":
        return partial(matches_pattern, pattern, anywhere=True) if is_auto_round_pattern(pattern) else None
    return partial(matches_pattern, pattern.removeprefix("re:")) if pattern.startswith("re:") else None


HEAD_MODULE = "lm_head"
HEAD = f"{HEAD_MODULE}.weight"
Shapes = Mapping[str, tuple[int, ...]]


_finding = partial(finding, Section.COVERAGE)


def coverage_rows(units: Iterable[LogicalWeight], shapes: Shapes) -> tuple[CoverageRow, ...]:
    """Class × declared × stored scheme, with counts and sizes; weights whose shape is not known are left out."""
    rows: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for unit in units:
        shape = unit.plain_shape or shapes.get(unit.name)
        if shape is None:
            continue
        scheme = unit.scheme
        declared = UNQUANTIZED if unit.is_plain else declared_label(scheme, shape) or scheme.format
        sums = rows[unit.tensor_class, declared, stored_label(unit, shape)]
        for position, amount in enumerate((1, prod(shape), unit.stored_bytes)):
            sums[position] += amount
    return tuple(
        CoverageRow(tensor_class=kind, declared=declared, stored=stored, count=count, values=values, stored_bytes=size)
        for (kind, declared, stored), (count, values, size) in sorted(rows.items())
    )


def coverage_findings(
    checkpoint: Checkpoint,
    units: Sequence[LogicalWeight],
    shapes: Shapes,
    quantization: Mapping[str, Any],
    promises: Sequence[Promise] = (),
) -> list[Finding]:
    """Everything about coverage that blocks or is worth knowing."""
    quantized = [unit for unit in units if not unit.is_plain]
    # every model has a head, though nothing may be stored for it, or under another name
    modules = {split_part(name)[0] for name in checkpoint.tensors} | {HEAD_MODULE}
    return [
        *_declared_against_stored(quantized, shapes),
        *_gptq_head(quantization, units),
        *_promised(units, shapes, promises),
        *_experts_left_out(units),
        *_ignore_list(quantization, modules),
        *_otherwise_than_listed(units),
        *_absent_schemes(quantization, quantized),
        *_two_declarations(checkpoint, quantization),
        *([] if quantized or quantization else [_nothing_quantized()]),
    ]


def _declared_against_stored(quantized: Sequence[LogicalWeight], shapes: Shapes) -> list[Finding]:
    findings = []
    for unit in quantized:
        shape = shapes.get(unit.name)
        declared = None if shape is None else declared_label(unit.scheme, shape)
        if shape is None or declared is None:
            continue
        stored = stored_label(unit, shape)
        if stored != declared:
            message = f"{unit.name} is declared as {declared} and stored as {stored}."
            findings.append(_finding("declared-against-stored", unit.name, message))
    return findings


def _gptq_head(quantization: Mapping[str, Any], units: Sequence[LogicalWeight]) -> list[Finding]:
    """GPTQ says of the head alone whether it is quantized (`lm_head`); engines choose its kernel by that entry."""
    if quantization.get("quant_method") != "gptq":
        return []
    excluded = len(dead_patterns(quantization, [HEAD_MODULE])) < len(ignore_patterns(quantization))
    declared = bool(quantization.get("lm_head")) and not excluded
    head = next((unit for unit in units if unit.name == HEAD), None)
    stored = head is not None and not head.is_plain
    if declared == stored:
        return []
    says = f"lm_head is {json.dumps(quantization.get('lm_head'))}{' and excluded by a rule' if excluded else ''}"
    held = (
        "no readable head is stored"
        if head is None
        else f"the head is stored {'quantized' if stored else 'unquantized'}"
    )
    message = f"quantization_config.{says}, and {held}."
    return [_finding("declared-against-stored", HEAD, message)]


def _two_declarations(checkpoint: Checkpoint, quantization: Mapping[str, Any]) -> list[Finding]:
    """Model Optimizer declares its quantization in a file of its own as well; engines read one or the other. So it is
    with one beside the text model's settings and one within them."""
    text = checkpoint.config.get("text_config")
    outer = checkpoint.config.get("quantization_config")
    inner = text.get("quantization_config") if isinstance(text, dict) else None
    if outer and inner and outer != inner:
        message = "quantization_config of config.json is not that of its text_config: engines read one or the other."
        return [_finding("declared-twice", "config.json", message)]
    if OWN_FILE not in checkpoint.held:
        return []
    try:
        own = own_quantization(checkpoint)
    except CorruptCheckpointError as error:
        return [_finding("declared-twice", OWN_FILE, str(error))]
    cache = quantization.get("kv_cache_quant_algo") or ("FP8" if quantization.get("kv_cache_scheme") else None)
    pairs = (("quant_algo", quantization.get("quant_algo")), ("kv_cache_quant_algo", cache))
    if quantization.get("quant_method") != "modelopt":
        pairs = (("quant_algo", quantization.get("quant_method")), ("kv_cache_quant_algo", cache))
    return [
        *_layers_declared_otherwise(own, quantization),
        *(
            _finding(
                "declared-twice",
                OWN_FILE,
                f"{OWN_FILE}: {key} is {json.dumps(own.get(key))}, config.json says {json.dumps(said)}"
                f"{', and engines read the one or the other; judged with the quantized cache.' if alone else '.'}",
                Severity.ADVISORY if alone else Severity.BLOCKING,
            )
            for key, said in pairs
            if _in_capitals(own.get(key)) != _in_capitals(said)
            for alone in [key == "kv_cache_quant_algo" and None in (own.get(key), said)]
        ),
    ]


def _in_capitals(algorithm: Any) -> Any:
    return algorithm.upper() if isinstance(algorithm, str) else algorithm


def _layers_declared_otherwise(own: Mapping[str, Any], quantization: Mapping[str, Any]) -> list[Finding]:
    """Of a mixed recipe both files say each layer's algorithm; the first that differs is named."""
    mine, theirs = quantization.get("quantized_layers"), own.get("quantized_layers")
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return []

    mine, theirs = ({canonical(name): entry for name, entry in layers.items()} for layers in (mine, theirs))

    def algorithm(layers: Mapping[str, Any], name: str) -> str | None:
        given = layers.get(name)
        return str(given.get("quant_algo")).upper() if isinstance(given, dict) else None

    differing = [name for name in sorted({*mine, *theirs}) if algorithm(mine, name) != algorithm(theirs, name)]
    if not differing:
        return []
    first = differing[0]
    message = (
        f"{OWN_FILE}: {first} is {algorithm(theirs, first) or 'not quantized'}, config.json says "
        f"{algorithm(mine, first) or 'not quantized'} ({len(differing)} layers differ)."
    )
    return [_finding("declared-twice", OWN_FILE, message)]


def _promised(units: Sequence[LogicalWeight], shapes: Shapes, promises: Sequence[Promise]) -> list[Finding]:
    """What a card says of some tensors, held against how each of them is stored."""
    findings = []
    for promise in promises:
        meant = [
            unit
            for unit in units
            if unit.tensor_class == promise.tensors or fnmatch.fnmatchcase(unit.name, promise.tensors)
        ]
        broken = [
            (unit, kind) for unit in meant if (kind := kind_of(unit, shapes.get(unit.name, ()))) != promise.stored
        ]
        if broken:
            first, kind = broken[0]
            message = (
                f"{promise.tensors}: {len(broken)} of {len(meant)} tensors are not {promise.stored}, as is promised "
                f"({promise.source}); {first.name} is {kind}."
            )
            findings.append(_finding("not-as-promised", first.name, message))
    return findings


def _experts_left_out(units: Iterable[LogicalWeight]) -> list[Finding]:
    """In one layer and projection either all experts are quantized or none; a layer may be left out as a whole."""
    groups: dict[tuple[str, str], list[LogicalWeight]] = defaultdict(list)
    for unit in units:
        place = fused_place(unit.name)
        if place is not None:
            groups[place[0], place[2]].append(unit)
    return [
        _finding(
            "expert-left-out",
            unit.name,
            f"{unit.name} is left unquantized, and {len(members) - len(plain)} of the {len(members)} experts beside it "
            f"are quantized.",
        )
        for members in groups.values()
        if (plain := [unit for unit in members if unit.is_plain]) and len(plain) < len(members)
        for unit in plain
    ]


def _ignore_list(quantization: Mapping[str, Any], modules: Iterable[str]) -> list[Finding]:
    patterns, dead = ignore_patterns(quantization), dead_patterns(quantization, modules)
    quoted = some_of([repr(pattern) for pattern in dead])
    if not dead:
        return []
    if len(dead) == len(patterns) and not all(map(_BESIDE_THE_TEXT.search, dead)):
        message = f"the ignore list matches no stored module: {quoted}."
        return [_finding("ignore-list-matches-nothing", "config.json", message)]
    message = f"{len(dead)} of {len(patterns)} entries of the ignore list match no stored module: {quoted}."
    return [_finding("ignore-entry-matches-nothing", "config.json", message, Severity.ADVISORY)]


_BESIDE_THE_TEXT = re.compile(r"visual|vision|audio|multi_modal|projector|mtp")
"""Entries for what a copy of the text model alone leaves out."""


def _otherwise_than_listed(units: Iterable[LogicalWeight]) -> list[Finding]:
    """Weights that are excluded and stored quantized, or quantized by the configuration and stored as numbers."""
    otherwise = [unit for unit in units if unit.scheme.declared is not None]
    cases = (
        (
            "excluded-and-quantized",
            [unit for unit in otherwise if not unit.is_plain],
            "Excluded from quantization, and stored quantized",
            "an engine that goes by the list holds them unquantized, and drops or refuses their scales (vLLM PR "
            "45132); an engine that goes by the files reads them quantized (vLLM PR 35660)",
        ),
        (
            "unquantized-and-not-excluded",
            [unit for unit in otherwise if unit.is_plain],
            "Declared quantized, and stored unquantized",
            "an engine that goes by the configuration builds quantized modules, and refuses these weights or converts "
            "them without a scale (transformers issue 48349); add them to the list of excluded modules",
        ),
    )
    return [
        _finding(
            rule,
            members[0].name,
            f"{what}: {len(members):,} weights, {members[0].name} among them. They are judged as stored; {readings}.",
            Severity.ADVISORY,
        )
        for rule, members, what, readings in cases
        if members
    ]


def _absent_schemes(quantization: Mapping[str, Any], quantized: Sequence[LogicalWeight]) -> list[Finding]:
    """A quantization, or one of its groups, that is declared and that no stored weight has."""
    if quantization and not quantized and not _only_the_cache(quantization):
        message = f"the configuration declares {quantization.get('quant_method')} and no stored weight is quantized."
        return [_finding("declared-scheme-absent", "config.json", message)]
    if quantization.get("quant_method") != "compressed-tensors":
        return []
    used = {tuple(unit.scheme.compressed.targets) for unit in quantized if unit.scheme.compressed}
    groups = quantization.get("config_groups") or {}
    return [
        _finding("declared-scheme-absent", name, f"group {name!r} of the configuration quantizes no stored weight.")
        for name, group in groups.items()
        if isinstance(group, dict) and group.get("weights") and tuple(group.get("targets") or ()) not in used
    ]


def _only_the_cache(quantization: Mapping[str, Any]) -> bool:
    """Whether what is declared is a quantized KV cache and nothing else."""
    weights = quantization.get("quant_algo") or quantization.get("config_groups")
    cache = quantization.get("kv_cache_quant_algo") or quantization.get("kv_cache_scheme")
    weights = weights or "quantized_layers" in quantization  # an empty list of them too
    return bool(cache) and not weights and quantization.get("quant_method") in ("modelopt", "compressed-tensors")


def _nothing_quantized() -> Finding:
    message = "nothing is quantized, and the configuration declares no quantization."
    return _finding("nothing-quantized", "config.json", message, Severity.ADVISORY)


def scheme_census(units: Iterable[LogicalWeight], shapes: Shapes) -> dict[str, int] | None:
    """Quantized weights by scheme (`q36eval.schemes`); None where one of them is of no scheme that can be told."""
    inputs: dict[tuple[Any, ...], str | None] = {}  # read once for all weights of one entry of the configuration
    counts: Counter[str] = Counter()
    for unit in units:
        if unit.is_plain:
            continue
        shape = shapes.get(unit.name)
        stored = None if shape is None else stored_kind(unit, shape)
        if stored is None:
            return None
        scheme = unit.scheme
        key = (scheme.format, id(scheme.compressed), scheme.settings, unit.tensor_class == "embeddings")
        try:
            if key not in inputs:
                activations = unit.activations()
                inputs[key] = None if activations is None else activations.kind
            counts[scheme_name(stored, inputs[key])] += 1
        except (CorruptCheckpointError, UsageError):
            return None
    return dict(sorted(counts.items()))
