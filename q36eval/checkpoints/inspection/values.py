"""The numbers a weight is stored as: finite, with scales that mean something and zero-points in range."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from q36eval.checkpoints.formats.unpacking import unpack_words
from q36eval.checkpoints.inspection.findings import Finding
from q36eval.checkpoints.inspection.opening import integrity
from q36eval.checkpoints.inspection.units import Unit
from q36eval.checkpoints.reader import Checkpoint

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


def value_faults(unit: Unit, parts: Mapping[str, Tensor]) -> list[Finding]:
    """What is wrong with the stored numbers, each finding naming its stored tensor."""
    stored = {part: entry.name for part, entry in unit.weight.parts}
    found: list[Finding] = []
    for part, tensor in parts.items():
        found += [integrity(rule, stored[part], f"{stored[part]} {what}.") for rule, what in _faults(part, tensor)]
    outputs = parts["qweight"].shape[-1] if "qweight" in parts else 0
    for part in ("qzeros", "weight_zero_point"):
        if part in parts and _zero_points_out_of_range(part, parts[part], unit, outputs):
            message = f"{stored[part]} holds zero-points that the declared scheme does not have."
            found.append(integrity("zero-point", stored[part], message))
    return found


def left_out_faults(checkpoint: Checkpoint, names: Iterable[str]) -> list[Finding]:
    """The same for stored tensors that are no part of the text model: the vision tower, the multi-token head."""
    return [
        integrity(rule, name, f"{name} {what}.")
        for name in names
        for rule, what in _faults(name.rpartition(".")[2], checkpoint.read(name))
    ]


def _faults(part: str, tensor: Tensor) -> Iterator[tuple[str, str]]:
    if not tensor.is_floating_point():
        return
    numbers = tensor.float()
    bad = int((~torch.isfinite(numbers)).sum())
    if bad:
        yield "non-finite", f"holds {bad} of {numbers.numel()} values that are no finite numbers"
    if part not in SCALES:
        return
    negative = int((numbers < 0).sum())
    if negative:
        yield "negative-scale", f"holds {negative} of {numbers.numel()} scales below zero"
    zero = int((numbers == 0).sum())
    if zero and (part not in LOCAL_SCALES or zero == numbers.numel()):
        yield "zero-scale", f"holds {zero} of {numbers.numel()} scales that are zero"


def erased_by_zero_scales(unit: Unit, parts: Mapping[str, Tensor], decoded: Tensor) -> list[Finding]:
    """Values that are not zero in themselves, but under a scale of zero: a group that was zeroed, not an empty one."""
    for part in LOCAL_SCALES:
        scale = parts.get(part)
        if scale is None or not bool((scale.float() == 0).any()) or bool((scale.float() == 0).all()):
            continue
        ones = torch.where(scale.float() == 0, 1.0, scale.float()).to(scale.dtype)
        erased = int(((unit.decode({**parts, part: ones}) != 0) & (decoded == 0)).sum())
        if erased:
            stored = dict(unit.weight.parts)[part].name
            return [integrity("zero-scale", stored, f"{stored} erases {erased} values with scales that are zero.")]
    return []


def _zero_points_out_of_range(part: str, zeros: Tensor, unit: Unit, outputs: int) -> bool:
    if part == "qzeros":
        scheme = unit.weight.scheme
        bits, offset = scheme.setting("bits"), scheme.setting("zero_offset")
        if not scheme.setting("sym") or bits is None or offset is None:
            return False
        # a dense stream of bits per group; the last word may hold more than there are outputs
        digits = unpack_words(zeros.T, int(bits))[:outputs]
        return bool((digits != 2 ** (int(bits) - 1) - int(offset)).any())
    weights = getattr(unit.weight.scheme.compressed, "weights", None)
    if weights is None or zeros.dtype != torch.int8 or not isinstance(weights.num_bits, int):
        return False  # packed zero-points hold just the bits they have: none is out of range
    limit = 2 ** (weights.num_bits - 1)
    return bool(((zeros < -limit) | (zeros >= limit)).any())
