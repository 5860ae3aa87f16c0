"""The numbers as they are stored: weights finite, scales that mean something, zero-points in range.

Of the scales of activations and of the KV cache: what the loader would refuse, and what no calibration can have given.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.formats.gptq import symmetric_offset
from q36eval.checkpoints.formats.parts import shared_exponents, unpack_words
from q36eval.checkpoints.inspection.configuration import FULL, is_of_qwen, layer_types, text_settings
from q36eval.checkpoints.inspection.damaged_folder import integrity
from q36eval.checkpoints.inspection.findings import Finding, Severity
from q36eval.checkpoints.inspection.stored_schemes import is_weight_only
from q36eval.checkpoints.kv_cache import FP8_MAX, declared_kv_cache_dtype, kv_cache_scales
from q36eval.checkpoints.names import KV_CACHE_SCALES, canonical, left_out_as
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.weights import LogicalWeight
from q36eval.errors import CorruptCheckpointError, UsageError

SCALES = (
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "scales",
)
LOCAL_SCALES = ("weight_scale", "weight_scale_inv", "scales")


def value_faults(unit: LogicalWeight, parts: Mapping[str, Tensor]) -> list[Finding]:
    """What is wrong with the stored numbers, each finding naming its stored tensor."""
    stored = {part: entry.name for part, entry in unit.parts}
    findings: list[Finding] = []
    for part, tensor in parts.items():
        faults = _faults(part, tensor, bool(unit.scheme.setting("signed_scales")))
        findings += [integrity(rule, stored[part], f"{stored[part]} {what}.") for rule, what in faults]
    outputs = parts["scales"].shape[-1] if "scales" in parts else 0
    for part in ("qzeros", "weight_zero_point"):
        if part in parts and _zero_points_out_of_range(part, parts[part], unit, outputs):
            message = f"{stored[part]} holds zero-points that the declared scheme does not have."
            findings.append(integrity("zero-point", stored[part], message))
    return findings


def left_out_faults(checkpoint: Checkpoint, names: Iterable[str]) -> list[Finding]:
    """The same for stored tensors that are no part of the text model: the vision tower, the multi-token head."""
    return [
        integrity(rule, name, f"{name} {what}.")
        for name in names
        for rule, what in _faults(name.rpartition(".")[2], checkpoint.read(name))
    ]


def _faults(part: str, tensor: Tensor, signed: bool = False) -> Iterator[tuple[str, str]]:
    if part == "weight_scale" and tensor.dtype == torch.uint8:
        tensor = shared_exponents(tensor)
    if not tensor.is_floating_point():
        return
    numbers = tensor.float()
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        yield "non-finite", f"holds {bad} of {numbers.numel()} values that are not finite"
    if part not in SCALES:
        return
    negative = int((numbers < 0).sum())
    if negative and not (signed and part in LOCAL_SCALES):
        yield "negative-scale", f"holds {negative} of {numbers.numel()} scales below zero"
    zero = int((numbers == 0).sum())
    if zero and (part not in LOCAL_SCALES or zero == numbers.numel()):
        yield "zero-scale", f"holds {zero} of {numbers.numel()} scales that are zero"


def erased_by_zero_scales(
    unit: LogicalWeight, parts: Mapping[str, Tensor], decoded: Tensor, decode: Callable[[Mapping[str, Tensor]], Tensor]
) -> list[Finding]:
    """Values that are not zero in themselves, but under a scale of zero: a group that was zeroed, not an empty one.

    `decode` is what makes `decoded` of the parts.
    """
    for part in LOCAL_SCALES:
        scale = parts.get(part)
        if scale is not None and scale.dtype == torch.uint8:  # an exponent has no zero, but 2^-127 in its place
            if not bool((scale == 0).any()):
                continue
            ones = torch.where(scale == 0, 127, scale)
            restored = decode({**parts, part: ones})
            erased = int(((restored != decoded) & (restored != 0)).sum())
            if erased:
                stored = dict(unit.parts)[part].name
                message = f"{stored} erases {erased} values with exponents that are zero: 2^-127."
                return [integrity("zero-scale", stored, message)]
            continue
        if scale is None or not bool((scale.float() == 0).any()) or bool((scale.float() == 0).all()):
            continue
        ones = torch.where(scale.float() == 0, 1.0, scale.float()).to(scale.dtype)
        erased = int(((decode({**parts, part: ones}) != 0) & (decoded == 0)).sum())
        if erased:
            stored = dict(unit.parts)[part].name
            return [integrity("zero-scale", stored, f"{stored} erases {erased} values with scales that are zero.")]
    return []


def _zero_points_out_of_range(part: str, zeros: Tensor, unit: LogicalWeight, outputs: int) -> bool:
    if part == "qzeros":
        scheme = unit.scheme
        bits, declared = scheme.setting("bits"), scheme.setting("zero_offset")
        if not scheme.setting("sym") or bits is None or declared is None:
            return False
        # a dense stream of bits per group; the last word may hold more than there are outputs
        stored = symmetric_offset(unpack_words(zeros.T, int(bits))[:outputs], int(bits))
        return stored is None or (scheme.format != "gptq" and stored != declared)
    weights = getattr(unit.scheme.compressed, "weights", None)
    if weights is None or zeros.dtype != torch.int8 or not isinstance(weights.num_bits, int):
        return False  # packed zero-points hold just the bits they have: none is out of range
    limit = 2 ** (weights.num_bits - 1)
    return bool(((zeros < -limit) | (zeros >= limit)).any())


STATIC_PARTS = ("input_global_scale", "input_scale", "activation_scale")
RANGE = (1e-6, 1e6)
"""Largest activation that a static scale may stand for. Inputs of a linear layer follow a norm, a gate or a product of
two such; the largest published activations lie in the ten thousands (arXiv 2402.17762)."""
LEAST_MEMBERS = 8
LEAST_SPREAD = 0.5
"""Floor of the robust standard deviation of the logarithm: experts see different tokens, layers different sizes."""
OUTLIER_Z = 10.0
"""With the floor, a factor of 150 from the median of the class: the largest in the sandbox is 10. Closer ones may be
right: the file alone does not tell what the inputs are."""
_LARGEST = {"nvfp4": 6.0 * 448.0, "fp8": FP8_MAX, "int8": 127.0}


def activation_findings(units: Mapping[str, LogicalWeight]) -> list[Finding]:
    """Every weight's input scale, as the loader reads it, and each against those of its class."""
    findings: list[Finding] = []
    not_emulated: dict[str, list[str]] = defaultdict(list)
    largest: dict[str, float] = {}
    dynamic: list[str] = []
    for name, unit in units.items():
        if unit.is_plain:
            continue
        try:
            scheme = unit.activations()
        except CorruptCheckpointError as error:
            findings.append(integrity("activation-scale", _stored(unit, str(error)), str(error)))
            continue
        except UsageError as error:
            not_emulated[str(error).partition(f"{unit.name}: ")[2]].append(name)
            continue
        if scheme is not None and (top := _largest_activation(scheme)) is not None:
            largest[name] = top
        if unit.tensor_class == "embeddings" or {*STATIC_PARTS}.isdisjoint(part for part, _ in unit.parts):
            continue  # it has no scale of its inputs
        if scheme is not None:  # inputs that are quantized by their own size each time need none
            dynamic += [_stored(unit)] if scheme.global_scale is None and scheme.static_scale is None else []
        elif not is_weight_only(unit):  # else it is no fault but a rule about engines (`servability`)
            message = f"{_stored(unit)} is stored, and the configuration declares no quantization of that input."
            findings.append(integrity("activation-scale", _stored(unit), message))
    findings += [
        integrity("activations-not-read", "config.json", f"{names[0]} and {len(names) - 1} more: {reason}")
        for reason, names in not_emulated.items()
    ]
    if dynamic:
        message = (
            f"{len(dynamic):,} scales of inputs are stored, {dynamic[0]} among them, and the configuration declares "
            f"inputs as quantized dynamically. They are judged as declared; an engine drops or refuses the scales."
        )
        unused = integrity("input-scales-unused", dynamic[0], message)
        findings.append(unused.model_copy(update={"severity": Severity.ADVISORY}))
    return findings + _implausible(units, largest)


def _stored(unit: LogicalWeight, message: str = "") -> str:
    """The stored name of the input scale that a message is about, or of the one that is stored."""
    module = unit.stored_names[0].rpartition(".")[0]
    entries = dict(unit.parts)
    part = next((part for part in STATIC_PARTS if f" {part} " in message), None)
    part = part or next((part for part in STATIC_PARTS if part in entries), "weight")
    return entries[part].name if part in entries else f"{module}.{part}"


def _largest_activation(scheme: ActivationScheme) -> float | None:
    """The largest input that the stored scale stands for; None for a dynamic one."""
    top = _LARGEST.get(scheme.kind)
    if top is None:
        return None
    if scheme.global_scale is not None:
        return top / scheme.global_scale
    return None if scheme.static_scale is None else top * scheme.static_scale


def _implausible(units: Mapping[str, LogicalWeight], largest: Mapping[str, float]) -> list[Finding]:
    """Outside what activations can be, or far from those of the same projection (experts: of the same layer)."""
    findings: list[Finding] = []
    classes: dict[str, dict[str, float]] = defaultdict(dict)
    experts = Counter(_place(name) for name in largest)
    for name, value in largest.items():
        if not RANGE[0] <= value <= RANGE[1]:
            stored = _stored(units[name])
            message = f"{stored} implies activations of up to {value:.3g}; no model has them."
            findings.append(integrity("activation-scale", stored, message))
            continue
        layer, projection = _place(name)
        where = layer if experts[layer, projection] >= LEAST_MEMBERS else "every layer"
        classes[f"{projection} of {units[name].tensor_class} in {where}"][name] = math.log(value)
    for kind, members in classes.items():
        if len(members) < LEAST_MEMBERS:
            continue
        centre = median(members.values())
        spread = max(LEAST_SPREAD, 1.4826 * median(abs(value - centre) for value in members.values()))
        for name, value in members.items():
            if abs(value - centre) > OUTLIER_Z * spread:
                stored = _stored(units[name])
                message = (
                    f"{stored} stands for activations of up to {math.exp(value):.3g}; the median of the {len(members)} "
                    f"{kind} is {math.exp(centre):.3g}."
                )
                findings.append(integrity("activation-scale", stored, message))
    return findings


def _place(name: str) -> tuple[str, str]:
    """(layer, projection), such as `model.layers.3` and `up_proj`."""
    module = name.split(".")
    return ".".join(module[:3]), module[-2]


def kv_cache_findings(checkpoint: Checkpoint) -> list[Finding]:
    """A KV cache that is not emulated, and calibrated scales that no attention layer can use, or no engine will."""
    findings: list[Finding] = []
    declared = None
    try:
        declared = declared_kv_cache_dtype(checkpoint)
    except UsageError as error:
        findings.append(integrity("kv-cache", "config.json", str(error)))
    stored = [name for name in checkpoint.tensors if left_out_as(name) == KV_CACHE_SCALES]
    faults = [(name, _kv_fault(checkpoint, name)) for name in stored]
    findings += [integrity("kv-cache-scale", name, f"{name} {fault}.") for name, fault in faults if fault is not None]
    if stored and not findings:
        try:
            kv_cache_scales(checkpoint)
        except CorruptCheckpointError as error:  # of all together: stored twice
            findings.append(integrity("kv-cache-scale", stored[0], str(error)))
    if stored and declared == "auto":
        message = f"{len(stored):,} scales of the KV cache are stored, but config.json declares no quantized KV cache."
        unused = integrity("kv-scales-undeclared", "config.json", message)
        findings.append(unused.model_copy(update={"severity": Severity.ADVISORY}))
    return findings


def _kv_fault(checkpoint: Checkpoint, name: str) -> str | None:
    """What is wrong with one stored scale; None when nothing is."""
    alone = replace(checkpoint, tensors={name: checkpoint.tensors[name]})
    try:
        scales = kv_cache_scales(alone)
    except CorruptCheckpointError:
        return "is not positive"
    settings = text_settings(checkpoint.config)
    heads = settings.get("num_key_value_heads")
    kinds = layer_types(settings) if is_of_qwen(settings) else [FULL] * settings["num_hidden_layers"]
    layer = canonical(name).split(".")
    number = int(layer[2]) if layer[:2] == ["model", "layers"] and layer[2].isdigit() else len(kinds)
    if number >= len(kinds) or kinds[number] != FULL:
        return "its layer has no full attention, so no KV cache"
    for of_layer in scales.values():
        for scale in of_layer.values():
            if scale.numel() not in (1, heads):
                return f"has shape {list(scale.shape)} for {heads} heads"
            largest = FP8_MAX * scale
            if bool((largest < RANGE[0]).any()) or bool((largest > RANGE[1]).any()):
                return f"implies keys or values of up to {float(largest.max()):.3g}; no model has them"
    return None
