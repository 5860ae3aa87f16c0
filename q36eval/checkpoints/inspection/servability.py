"""What serving engines are known to make of such files, foreseen from the files alone.

An engine fuses modules that this gate runs one by one, and leaves tensors unread that it does not know. Each rule says
which engine does so, what users see, and where it was reported. The checks look at names and at tensors of one value.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from q36eval.checkpoints.formats.gptq import symmetric_offset
from q36eval.checkpoints.formats.parts import unpack_words
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.configuration import is_of_qwen, text_settings
from q36eval.checkpoints.inspection.findings import Finding, Section, Severity, finding, some_of
from q36eval.checkpoints.inspection.stored_schemes import kind_of
from q36eval.checkpoints.kv_cache import kv_cache_scales
from q36eval.checkpoints.names import FUSED, FUSED_OF
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.state_dtypes import STATE_DTYPES
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import CorruptCheckpointError

TOLERATED = 0.01
"""An error of all values of a weight by so much is shown; a larger one blocks. NVFP4 itself costs about 0.1."""
GLOBAL_SCALES = {"weight_global_scale": -1, "weight_scale_2": 1}
"""The one scale of an NVFP4 weight, and the power in which its values take it: compressed-tensors divides by it."""
MOST_GPUS = 8
"""More GPUs of one machine are not foreseen."""
MARLIN_BITS, MARLIN_GROUPS, MARLIN_COLUMNS = (4, 8), (32, 64, 128), 128
"""The bits and group sizes that vLLM's kernel Marlin computes, and the multiple that the columns must be."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rule:
    """What an engine makes of what the files hold. `versions` says in which it was seen, as the source tells it."""

    engine: str
    versions: str
    symptom: str
    source: str
    severity: Severity = Severity.BLOCKING


RULES = {
    "fused-global-scales": Rule(
        "vLLM",
        "reported in September 2026, open then",
        "takes one global scale for modules that it fuses, and only warns: experts' up projections come out by the "
        "gate's scale, others by the largest",
        "https://github.com/vllm-project/vllm/issues/54974",
    ),
    "expert-scales-reordered": Rule(
        "vLLM",
        "0.26 on an H100; by its sources 0.11 (GPTQ, AWQ), 0.32 and 0.33 too wherever they take the kernel Marlin",
        "puts the scales of experts' gate and up projections into an order that its kernel Marlin does not read, where "
        "a GPU's share of their rows is as large as a group: most values come out by another row's scale",
        "https://github.com/vllm-project/vllm/pull/50196",
        Severity.ADVISORY,
    ),
    "fused-schemes": Rule(
        "vLLM",
        "reported with Qwen3.6-27B in INT4",
        "holds these modules as one, which has one scheme, and refuses to load them",
        "https://github.com/intel/auto-round/issues/1726",
    ),
    "kv-scales-ignored": Rule(
        "vLLM and SGLang",
        "vLLM 0.27.1; SGLang, reported by September 2026",
        "leave the stored scales of the KV cache of Qwen3.5 models unread, and store keys and values by 1.0",
        "https://github.com/vllm-project/vllm/issues/54623",
        Severity.ADVISORY,
    ),
    "state-dtype": Rule(
        "vLLM",
        "since February 2026",
        "stores the recurrent state of linear attention in the dtype that the configuration names",
        "https://github.com/vllm-project/vllm/pull/34489",
        Severity.ADVISORY,
    ),
    "expert-input-scales": Rule(
        "vLLM",
        "reported in June 2026, on its main branch then",
        "divides by the missing scale of an expert's inputs: prompts that route there answer nothing",
        "https://github.com/vllm-project/vllm/issues/45212",
    ),
    "zero-points-of-other-version": Rule(
        "vLLM",
        "reported in April 2026, open then",
        "answers right by kernels that read no zero-points of a symmetric grid (Marlin, as here) and nonsense by those "
        "that do (gptq_gemm, of Exllama), where the shapes or the GPU call for them",
        "https://github.com/vllm-project/vllm/pull/38966",
        Severity.ADVISORY,
    ),
    "router-gates-quantized": Rule(
        "vLLM",
        "its main branch, read in November 2026",
        "keeps router gates unquantized, and so finds no parameter for what is stored",
        "vllm/model_executor/models/qwen3_next.py",
        Severity.ADVISORY,
    ),
}
"""By the name of the rule that findings carry."""


def servability_findings(checkpoint: Checkpoint, units: Mapping[str, LogicalWeight], shapes: Shapes) -> list[Finding]:
    """All rules over one checkpoint; a rule that holds in many places is one finding a class of tensor."""
    groups = fused_groups(units)
    return [
        *_global_scales(groups),
        *_expert_scales(units),
        *_schemes(groups, shapes),
        *_kv_scales(checkpoint),
        *_state_dtype(checkpoint),
        *_input_scales(units),
        *_router_gates(checkpoint, units),
        *_zero_points(units),
    ]


def fused_groups(weights: Mapping[str, LogicalWeight]) -> dict[str, list[LogicalWeight]]:
    """The weights that an engine holds as one, by the name that it has there, in its order; whole groups alone."""
    groups: dict[str, dict[str, LogicalWeight]] = defaultdict(dict)
    for name, weight in weights.items():
        module, _, part = name.removesuffix(".weight").rpartition(".")
        if part in FUSED_OF:
            groups[f"{module}.{FUSED_OF[part]}"][part] = weight
    ordered = {name: FUSED[name.rpartition(".")[2]] for name in groups}
    return {
        name: [members[part] for part in ordered[name]]
        for name, members in groups.items()
        if len(members) == len(ordered[name])
    }


def as_fused(members: Sequence[LogicalWeight]) -> list[float] | None:
    """The factors by which each member's values are off in an engine that takes one global scale for all of them.

    vLLM takes the first member's, the gate's, for routed experts
    (vllm/model_executor/layers/quantization/modelopt.py, `w13_weight_scale_2[:, 0]`), and for others the largest number
    that is stored (`weight_global_scale.max()`, `weight_scale_2.max()`). None where not all have one finite, positive
    global scale in the same part.
    """
    parts = [dict(weight.parts) for weight in members]
    part = next((name for name in GLOBAL_SCALES if all(name in own for own in parts)), None)
    if part is None or any(math.prod(own[part].shape) != 1 for own in parts):
        return None
    entries = [(weight, own[part]) for weight, own in zip(members, parts, strict=True)]
    stored = [float(weight.checkpoint.read_entry(entry).float()) for weight, entry in entries]
    if not all(math.isfinite(value) and value > 0 for value in stored):
        return None
    taken = stored[0] if members[0].tensor_class == "routed experts" else max(stored)
    return [(taken / value) ** GLOBAL_SCALES[part] for value in stored]


def _global_scales(groups: Mapping[str, Sequence[LogicalWeight]]) -> Iterator[Finding]:
    by_class: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    counted: dict[tuple[str, str], int] = defaultdict(int)
    for name, members in groups.items():
        factors = as_fused(members)
        if factors is None:
            continue
        kind = members[0].tensor_class, " and ".join(FUSED[name.rpartition(".")[2]])
        counted[kind] += 1
        error = max(abs(factor - 1) for factor in factors)
        if error > 0:
            by_class[kind][name] = error
    for (tensor_class, parts), errors in by_class.items():
        worst = max(errors, key=lambda name: errors[name])
        message = (
            f"{parts} of {tensor_class} have different global scales in {len(errors):,} of "
            f"{counted[tensor_class, parts]:,} places: as one module, values are up to {errors[worst]:.1%} off (median "
            f"{median(errors.values()):.1%}; most in {worst})"
        )
        severity = Severity.BLOCKING if errors[worst] > TOLERATED else Severity.ADVISORY
        yield _finding("fused-global-scales", worst, message, severity)


def _expert_scales(units: Mapping[str, LogicalWeight]) -> Iterator[Finding]:
    """Integers in groups of columns; which kernel computes them on how many GPUs is not in the files."""
    by_gpus: dict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    for name, unit in units.items():
        grouped = grouped_rows(unit)
        if grouped is not None and grouped[0] // grouped[1] <= MOST_GPUS:
            by_gpus[grouped[0] // grouped[1]][name] = grouped
    for gpus, found in by_gpus.items():
        name, (rows, group) = next(iter(found.items()))
        where = "on one GPU" if gpus == 1 else f"on {gpus} GPUs that split every layer (tensor parallel)"
        message = (
            f"{len(found):,} gate and up projections of experts have {rows} rows and groups of {group}: {where} a "
            f"share of them is as large as a group (--engine vllm measures that)"
        )
        yield _finding("expert-scales-reordered", name, message)


def grouped_rows(weight: LogicalWeight) -> tuple[int, int] | None:
    """Rows and group size of an expert's gate or up projection in integers with several groups of columns.

    None for any other weight, and where Marlin does not compute it. vLLM reorders the scales where a GPU's share of the
    rows is as large as a group (`size_k=layer.intermediate_size_per_partition` in
    vllm/model_executor/layers/fused_moe/oracle/int_wna16.py of 0.26 to 0.33); a smaller share it refuses or gives to
    another kernel (`check_moe_marlin_supports_layer`).
    """
    projection = weight.name.removesuffix(".weight").rpartition(".")[2]
    if weight.tensor_class != "routed experts" or projection not in ("gate_proj", "up_proj"):
        return None
    entries = dict(weight.parts)
    sizes = _by_columns(weight.scheme, entries) if "qweight" in entries else _by_rows(weight.scheme, entries)
    if sizes is None:
        return None
    rows, columns, groups = sizes
    group = columns // groups if groups > 1 and columns % groups == 0 else 0
    if group not in MARLIN_GROUPS or columns % MARLIN_COLUMNS or rows % group or not rows:
        return None
    return rows, group


def _by_columns(scheme: Scheme, entries: Mapping[str, TensorEntry]) -> tuple[int, int, int] | None:
    """Rows, columns and groups of GPTQ and AWQ; vLLM has no GPTQ with zero points in Marlin."""
    bits, scales, words = scheme.setting("bits"), entries.get("scales"), entries["qweight"].shape
    if bits not in MARLIN_BITS or scales is None or len(scales.shape) != 2 or len(words) != 2:
        return None
    groups, rows = scales.shape
    if scheme.format == "awq":
        return (rows, words[0], groups) if words[1] * 32 // int(bits) == rows else None
    if scheme.format != "gptq" or not scheme.setting("sym") or words[1] != rows:
        return None
    return rows, words[0] * 32 // int(bits), groups


def _by_rows(scheme: Scheme, entries: Mapping[str, TensorEntry]) -> tuple[int, int, int] | None:
    """The same of compressed-tensors, weight-only and symmetric: vLLM gives others to other methods."""
    weights = getattr(scheme.compressed, "weights", None)
    bits, values, scales = getattr(weights, "num_bits", None), entries.get("weight_packed"), entries.get("weight_scale")
    if values is None or scales is None or values.dtype != "I32" or weights is None or bits not in MARLIN_BITS:
        return None
    if not weights.symmetric or scheme.compressed.input_activations is not None:
        return None
    if len(values.shape) != 2 or len(scales.shape) != 2 or scales.shape[0] != values.shape[0]:
        return None
    return values.shape[0], values.shape[1] * 32 // int(bits), scales.shape[1]


def _schemes(groups: Mapping[str, Sequence[LogicalWeight]], shapes: Shapes) -> Iterator[Finding]:
    """Members stored differently: one left unquantized beside a quantized one, or by another scheme."""
    by_kinds: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name, members in groups.items():
        kinds = tuple(kind_of(unit, shapes.get(unit.name, ())) for unit in members)
        if len(set(kinds)) > 1:
            parts = FUSED[name.rpartition(".")[2]]
            told = tuple(f"{part} {kind}" for part, kind in zip(parts, kinds, strict=True))
            by_kinds[members[0].tensor_class, told].append(name)
    for (tensor_class, told), names in by_kinds.items():
        message = f"one module of an engine, stored by several schemes in {len(names):,} places of {tensor_class}: "
        yield _finding("fused-schemes", names[0], message + ", ".join(told))


def _kv_scales(checkpoint: Checkpoint) -> Iterator[Finding]:
    try:
        scales = kv_cache_scales(checkpoint)
    except CorruptCheckpointError:
        return  # reported with the stored numbers
    values = [float(value) for layer in scales.values() for scale in layer.values() for value in scale.reshape(-1)]
    other = [value for value in values if value != 1.0]
    if other and is_of_qwen(text_settings(checkpoint.config)):
        layer = min(scales)
        message = (
            f"{len(other)} of {len(values)} stored scales of the KV cache are not 1 ({min(other):.3g} to "
            f"{max(other):.3g}): without them other keys and values are read back than were judged"
        )
        yield _finding("kv-scales-ignored", f"{layer}.k_scale", message)


def _state_dtype(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Here the state is float32, unless the command says otherwise."""
    settings = checkpoint.config.get("text_config") or checkpoint.config
    dtype = settings.get("mamba_ssm_dtype") if isinstance(settings, dict) else None
    if isinstance(dtype, str) and dtype in STATE_DTYPES and dtype != "float32":
        option = f"--engine-arg recurrent_state_dtype={dtype}"
        message = f"mamba_ssm_dtype is {dtype}, and float32 is measured unless {option} is given"
        yield _finding("state-dtype", "config.json", message)


def _input_scales(units: Mapping[str, LogicalWeight]) -> Iterator[Finding]:
    """Experts without the static scale of their inputs that others of the same layer and projection have."""
    have: dict[tuple[str, str], list[bool]] = defaultdict(list)
    lacking: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, unit in units.items():
        if unit.tensor_class != "routed experts" or unit.is_plain:
            continue
        place = name.partition(".experts.")[0], name.split(".")[-2]
        has = bool({"input_global_scale", "input_scale"} & {part for part, _ in unit.parts})
        have[place].append(has)
        lacking[place] += [] if has else [name]
    names = [name for place, missing in lacking.items() if any(have[place]) for name in missing]
    if names:
        message = f"{len(names):,} experts lack the scale of their inputs: {some_of(names)}"
        yield _finding("expert-input-scales", names[0], message)


def _zero_points(units: Mapping[str, LogicalWeight]) -> Iterator[Finding]:
    """Zero-points of one version of GPTQ under the name of the other; the first weight's stand for all."""
    symmetric = [unit for unit in units.values() if unit.scheme.format == "gptq" and unit.scheme.setting("sym")]
    for unit in symmetric[:1]:
        stored = dict(unit.parts).get("qzeros")
        if stored is None or stored.dtype != "I32" or len(stored.shape) != 2:
            continue  # reported with the weight
        bits, outputs = int(unit.scheme.setting("bits")), dict(unit.parts)["scales"].shape[-1]
        zeros = unpack_words(unit.checkpoint.read_entry(stored).T, bits)[:outputs]
        offset, declared = symmetric_offset(zeros, bits), unit.scheme.setting("zero_offset")
        if offset is not None and offset != declared:
            says = {0: "version 2", 1: "version 1"}
            message = f"{len(symmetric):,} weights are declared as {says[declared]} of GPTQ, and their zero-points are "
            yield _finding("zero-points-of-other-version", stored.name, message + f"those of {says[offset]}")


def _router_gates(checkpoint: Checkpoint, units: Mapping[str, LogicalWeight]) -> Iterator[Finding]:
    names = [name for name, unit in units.items() if unit.tensor_class == "router gates" and not unit.is_plain]
    if names and is_of_qwen(text_settings(checkpoint.config)):
        message = f"{len(names)} router gates are quantized ({names[0]} among them)"
        yield _finding("router-gates-quantized", names[0], message)


def _finding(rule: str, subject: str, message: str, severity: Severity | None = None) -> Finding:
    told = RULES[rule]
    message += f"; {told.engine} ({told.versions}) {told.symptom} ({told.source})."
    return finding(Section.SERVABILITY, rule, subject, message, severity or told.severity)
