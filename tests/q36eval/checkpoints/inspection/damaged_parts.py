"""Damage to the stored parts of one quantized weight, whatever the format: codes, scales, zero-points, their names.

Each kind is a function of the parts of the weight, of those of a twin of the same shape, and returns the part that an
inspection names, or nothing where that is the weight.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from .damage import Tensors, edit_json, edit_tensors

Parts = dict[str, Tensor]
Change = Callable[[Parts, Parts], str | None]
EXPERT = "model.layers.0.mlp.experts.1"
TWIN = "model.layers.0.mlp.experts.0"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
_LAST_BIT_BUT_ONE = {torch.uint8: 0x40, torch.int16: 0x4000, torch.int32: 0x40000000}
_AS_WIDE = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16, torch.float32: torch.int32,
            torch.float8_e4m3fn: torch.uint8, torch.uint8: torch.int8, torch.int32: torch.float32,
            torch.int8: torch.uint8}  # fmt: skip


def codes(parts: Parts) -> str:
    return next(part for part in ("qweight", "weight_packed", "weight") if part in parts)


def scale(parts: Parts) -> str:
    return next(part for part in ("scales", "weight_scale", "weight_scale_inv") if part in parts)


def unit(parts: Parts) -> str:
    """The global scale."""
    return next(part for part in ("weight_global_scale", "weight_scale_2") if part in parts)


def inputs(parts: Parts) -> str:
    return next(part for part in ("input_global_scale", "input_scale", "activation_scale") if part in parts)


def zeros(parts: Parts) -> str:
    return next(part for part in ("qzeros", "weight_zero_point") if part in parts)


def bits(tensor: Tensor) -> Tensor:
    """The same bytes as integers."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return tensor.view(width)


def erased(parts: Parts, twin: Parts) -> None:
    """Every code that of a zero; integers in words are stored with the offset of their symmetric zero-point."""
    tensor = parts[codes(parts)]
    eight = tensor.dtype == torch.int32 and "weight_shape" in parts and tensor.shape[1] * 4 == parts["weight_shape"][1]
    word = -0x7F7F7F80 if eight else -0x77777778
    bits(tensor).fill_(word if tensor.dtype == torch.int32 else 0)


def swapped(parts: Parts, twin: Parts) -> None:
    for part in parts:
        parts[part], twin[part] = twin[part], parts[part]


def duplicated(parts: Parts, twin: Parts) -> None:
    parts.update({part: tensor.clone() for part, tensor in twin.items()})


def scales_of_the_twin(parts: Parts, twin: Parts) -> None:
    for part in parts:
        if part in ("scales", "weight_scale", "weight_scale_inv", "weight_global_scale", "weight_scale_2"):
            parts[part] = twin[part].clone()


def codes_of_the_twin(parts: Parts, twin: Parts) -> None:
    parts[codes(parts)] = twin[codes(parts)].clone()


def turned_block(parts: Parts, twin: Parts) -> None:
    """A block of values with the opposite sign."""
    tensor = bits(parts[codes(parts)])
    block = tensor[: len(tensor) // 2, : tensor.shape[1] // 2]
    if parts[codes(parts)].dtype in (torch.int32, torch.int8):
        block.copy_(block.bitwise_not())  # as far on the other side of half a step below the zero-point
    else:
        block.bitwise_xor_(0x88 if "fp4" in _kind(parts) else 0x80)


def _kind(parts: Parts) -> str:
    return "fp4" if parts[codes(parts)].dtype == torch.uint8 else "fp8"


def other_nibble_first(parts: Parts, twin: Parts) -> None:
    """In bytes the high nibble first; in words every code one place further."""
    tensor = parts[codes(parts)]
    if tensor.dtype == torch.uint8:
        parts[codes(parts)] = (tensor >> 4) | (tensor << 4)
    else:
        high = (tensor >> 28) & 0xF
        parts[codes(parts)] = (tensor << 4) | high


def shifted_rows(parts: Parts, twin: Parts) -> None:
    """The codes of each row in the place of the next one's, under the scales that were there."""
    tensor = bits(parts[codes(parts)])
    tensor.copy_(tensor.roll(1, 0))


def column_by_column(parts: Parts, twin: Parts) -> None:
    """Written transposed, under the shape that it should have."""
    tensor = bits(parts[codes(parts)])
    tensor.copy_(tensor.T.contiguous().reshape(tensor.shape))


def scales_column_by_column(parts: Parts, twin: Parts) -> None:
    tensor = bits(parts[scale(parts)])
    tensor.copy_(tensor.T.contiguous().reshape(tensor.shape))


def one_scale_doubled(parts: Parts, twin: Parts) -> None:
    flat = parts[scale(parts)].view(-1)
    place = min(3, flat.numel() - 1)
    if flat.dtype == torch.uint8:
        flat[place] += 1
    else:
        flat[place] = (flat[place].float() * 2).to(flat.dtype)


def flipped_bit_of_a_scale(parts: Parts, twin: Parts) -> None:
    """The highest bit of the exponent of one."""
    flat = bits(parts[scale(parts)].view(-1))
    flat[flat.numel() - 1] ^= _LAST_BIT_BUT_ONE[flat.dtype]


def flipped_bit_of_a_code(parts: Parts, twin: Parts) -> None:
    """The sign of the largest value of FP8 and INT8, the highest bit of a size of what is packed."""
    tensor = parts[codes(parts)]
    place = int(tensor.float().abs().argmax()) if tensor.dtype in (torch.float8_e4m3fn, torch.int8) else 5
    packed = {torch.uint8: 0x44, torch.int32: 0x40000000}
    bits(tensor.view(-1))[place] ^= packed.get(tensor.dtype, 0x80)


def no_number(parts: Parts, twin: Parts) -> str:
    """One scale NaN; an exponent of 255 is that."""
    flat = parts[scale(parts)].view(-1)
    if flat.dtype == torch.uint8:
        flat[0] = 255
    else:
        flat[0] = torch.tensor(float("nan")).to(flat.dtype)
    return scale(parts)


def no_number_among_codes(parts: Parts, twin: Parts) -> str:
    bits(parts[codes(parts)]).view(-1)[5] = 0x7F
    return codes(parts)


def all_scales_zero(parts: Parts, twin: Parts) -> str:
    parts[scale(parts)].zero_()
    return scale(parts)


def one_negative_scale(parts: Parts, twin: Parts) -> str:
    _turn_first(parts[scale(parts)].view(-1))
    return scale(parts)


def one_lost_sign(parts: Parts, twin: Parts) -> None:
    """Of AutoRound's scales, which have signs."""
    _turn_first(parts[scale(parts)].view(-1))


def _turn_first(flat: Tensor) -> None:
    flat[0] = (-flat[0].float()).to(flat.dtype)


def infinite_scale(parts: Parts, twin: Parts) -> str:
    parts[scale(parts)].view(-1)[0] = float("inf")
    return scale(parts)


def one_group_erased(parts: Parts, twin: Parts) -> str:
    parts[scale(parts)].view(-1)[0] = 0
    return scale(parts)


def lost_scale(parts: Parts, twin: Parts) -> str:
    del parts[scale(parts)]
    return ""


def lost_row(parts: Parts, twin: Parts) -> None:
    parts[codes(parts)] = parts[codes(parts)][:-1]


def scales_in_another_dtype(parts: Parts, twin: Parts) -> None:
    """The bytes as they are."""
    tensor = parts[scale(parts)]
    parts[scale(parts)] = tensor.view(_AS_WIDE[tensor.dtype])


def codes_in_another_dtype(parts: Parts, twin: Parts) -> None:
    tensor = parts[codes(parts)]
    parts[codes(parts)] = tensor.view(_AS_WIDE[tensor.dtype])


def _global(value: float) -> Change:
    def change(parts: Parts, twin: Parts) -> str:
        parts[unit(parts)].fill_(value)
        return unit(parts)

    return change


zero_global, infinite_global, nan_global, negative_global = (
    _global(value) for value in (0.0, float("inf"), float("nan"), -1.0)
)


def denormal_global(parts: Parts, twin: Parts) -> None:
    parts[unit(parts)].fill_(1e-41)


def doubled_global(parts: Parts, twin: Parts) -> None:
    parts[unit(parts)].mul_(2)


def _inputs(value: float) -> Change:
    def change(parts: Parts, twin: Parts) -> str:
        parts[inputs(parts)].fill_(value)
        return inputs(parts)

    return change


zero_inputs, infinite_inputs, nan_inputs, negative_inputs, tiny_inputs = (
    _inputs(value) for value in (0.0, float("inf"), float("nan"), -1.0, 1e-30)
)


def lost_inputs(parts: Parts, twin: Parts) -> str:
    name = inputs(parts)
    del parts[name]
    return name


def zero_points_off_by_one(parts: Parts, twin: Parts) -> None:
    """Every zero-point one step off."""
    parts[zeros(parts)] = parts[zeros(parts)] ^ 0x11111111


def impossible_zero_points(parts: Parts, twin: Parts) -> str:
    """The same where the scheme is symmetric, and has one zero-point alone."""
    zero_points_off_by_one(parts, twin)
    return zeros(parts)


def reversed_order(parts: Parts, twin: Parts) -> None:
    name = "g_idx" if "g_idx" in parts else "weight_g_idx"
    parts[name] = parts[name].flip(0)


def on(change: Change, module: str, twin: str) -> Callable[[Path], str]:
    """The change as one of a checkpoint folder; what it returns is what an inspection names."""

    def damage(folder: Path) -> str:
        subject = f"{module}.weight"

        def edit(tensors: Tensors) -> None:
            nonlocal subject
            mine, other = _take(tensors, module), _take(tensors, twin)
            part = change(mine, other)
            if part is not None:
                subject = f"{module}.{part}".removesuffix(".")
            for name, parts in ((module, mine), (twin, other)):
                tensors.update({f"{name}.{key}": tensor for key, tensor in parts.items()})

        edit_tensors(folder, edit)
        return subject

    return damage


def _take(tensors: Tensors, module: str) -> Parts:
    names = [name for name in tensors if name.startswith(f"{module}.")]
    return {name.removeprefix(f"{module}."): tensors.pop(name).clone() for name in names}


def other_version(folder: Path) -> str:
    """GPTQ's zero-points read by the other version's rule: one off."""

    def change(config: dict[str, dict[str, str]]) -> None:
        quantization = config["quantization_config"]
        quantization["checkpoint_format"] = {"gptq": "gptq_v2", "gptq_v2": "gptq"}[quantization["checkpoint_format"]]

    edit_json(folder, "config.json", change)
    return f"{EXPERT}.up_proj.weight"
