"""Kinds of damage to one quantized weight, and the golden checkpoints that each is done to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import damaged_parts as parts
from .damage import edit_tensors
from .damaged_parts import EXPERT, Change

NVFP4 = ("ct-nvfp4", "ct-mixed", "modelopt-nvfp4", "modelopt-nvfp4-default", "modelopt-nvfp4-w4a16", "modelopt-mixed")
MX = ("ct-mxfp4", "ct-mxfp8", "modelopt-mxfp4", "modelopt-mxfp8")
FP8_TENSOR = ("ct-fp8-block", "ct-fp8-tensor-static", "modelopt-fp8", "modelopt-fp8-block", "modelopt-fp8-default")
FP8 = ("ct-fp8-channel-dynamic", "modelopt-fp8-token", "tf-fp8-per-expert", *FP8_TENSOR)
WORDS = ("ct-awq", "ct-w4a16-asym", "ct-w4a16-group", "ct-w4a16-ordered", "ct-w8a16-channel")
SYMMETRIC = ("autoround-gptq", "autoround-sym")
GPTQ = (*SYMMETRIC, "gptq-v1", "gptq-v2", "autoround-asym")
AWQ = ("autoround-awq", "autoround-own-awq")
AUTOROUND = ("autoround-gptq", "autoround-sym", "autoround-asym", *AWQ)
INT8 = ("ct-w8a8-int8",)
ALL = (*NVFP4, *MX, *FP8, *INT8, *WORDS, *GPTQ, *AWQ)
FLOAT_SCALES = (*FP8, *INT8, *WORDS, *GPTQ, *AWQ)
STATIC_INPUTS = ("ct-fp8-tensor-static", "modelopt-fp8", "modelopt-fp8-default", "modelopt-nvfp4",
                 "modelopt-nvfp4-default", "modelopt-mixed", "ct-nvfp4", "ct-mixed")  # fmt: skip
SEVERAL_PER_ROW = (*NVFP4, *MX, *GPTQ, *AWQ, "ct-awq", "ct-w4a16-asym", "ct-w4a16-group", "ct-w4a16-ordered",
                   "tf-fp8-per-expert")  # fmt: skip
BEYOND = "beyond-scheme"


@dataclass(frozen=True)
class Kind:
    """What is wrong, the change, and the rule that names the weight or its part; `instead` for some formats."""

    what: str
    change: Change
    formats: tuple[str, ...] = ALL
    rule: str = BEYOND
    instead: Mapping[str, str] = field(default_factory=dict)
    projection: str = "up_proj"
    twin: str | None = None
    twin_projection: str = "up_proj"


def formats_of(kind: Kind) -> tuple[str, ...]:
    """The golden checkpoints that a kind is done to."""
    return kind.formats


SHAPES = dict.fromkeys((*FP8_TENSOR, "tf-fp8-per-expert", "autoround-sym", "autoround-asym"), "shape")
BF16_AND_F16 = dict.fromkeys((*WORDS, *GPTQ, *AWQ, *INT8, "ct-fp8-block", "ct-fp8-channel-dynamic",
                              "ct-fp8-tensor-static"), BEYOND)  # fmt: skip
KINDS = [
    Kind("all values zero", parts.erased),
    Kind("two experts exchanged", parts.swapped),
    Kind("gate and up exchanged", parts.swapped, twin=EXPERT, twin_projection="gate_proj"),
    Kind("one expert twice", parts.duplicated),
    Kind("scales of another expert", parts.scales_of_the_twin),
    Kind("codes of another expert", parts.codes_of_the_twin),
    Kind("a block of values with the opposite sign", parts.turned_block),
    Kind("codes packed in another order", parts.other_nibble_first, (*NVFP4, "ct-mxfp4", "modelopt-mxfp4", *WORDS,
                                                                      *GPTQ, *AWQ)),
    Kind("rows under the scales of the row before", parts.shifted_rows),
    Kind("written column by column", parts.column_by_column),
    Kind("scales written column by column", parts.scales_column_by_column, SEVERAL_PER_ROW),
    Kind("one scale doubled", parts.one_scale_doubled),
    Kind("one bit of a scale's exponent flipped", parts.flipped_bit_of_a_scale),
    Kind("one bit of a code flipped", parts.flipped_bit_of_a_code),
    Kind("one scale that is no number", parts.no_number, rule="non-finite"),
    Kind("one value that is no number", parts.no_number_among_codes, (*FP8, "ct-mxfp8", "modelopt-mxfp8"),
         "non-finite"),
    Kind("all scales zero", parts.all_scales_zero, rule="zero-scale"),
    Kind("one group erased by its scale", parts.one_group_erased, rule="zero-scale"),
    Kind("one negative scale", parts.one_negative_scale, (*NVFP4, *FP8, *INT8, *WORDS, "gptq-v1", "gptq-v2"),
         "negative-scale"),
    Kind("one scale's sign lost", parts.one_lost_sign, AUTOROUND),
    Kind("one infinite scale", parts.infinite_scale, FLOAT_SCALES, "non-finite"),
    Kind("scales lost", parts.lost_scale, rule="not-as-declared"),
    Kind("one row short", parts.lost_row, rule="undecodable", instead=SHAPES),
    Kind("scales under another dtype of their size", parts.scales_in_another_dtype, rule="undecodable",
         instead=BF16_AND_F16),
    Kind("codes under another dtype of their size", parts.codes_in_another_dtype, rule="undecodable"),
    Kind("global scale zero", parts.zero_global, NVFP4, "zero-scale"),
    Kind("global scale infinite", parts.infinite_global, NVFP4, "non-finite"),
    Kind("global scale no number", parts.nan_global, NVFP4, "non-finite"),
    Kind("global scale negative", parts.negative_global, NVFP4, "negative-scale"),
    Kind("global scale denormal", parts.denormal_global, NVFP4),
    Kind("global scale doubled", parts.doubled_global, NVFP4),
    Kind("input scale zero", parts.zero_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("input scale infinite", parts.infinite_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("input scale no number", parts.nan_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("input scale negative", parts.negative_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("input scale of no activation", parts.tiny_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("input scale lost", parts.lost_inputs, STATIC_INPUTS, "activation-scale"),
    Kind("zero-points one off", parts.zero_points_off_by_one, (*GPTQ, *AWQ, "ct-awq", "ct-w4a16-asym")),
    Kind("zero-points that a symmetric scheme does not have", parts.impossible_zero_points, SYMMETRIC, "zero-point"),
    Kind("columns in another order", parts.reversed_order, ("gptq-v1", "gptq-v2", "autoround-gptq",
                                                             "ct-w4a16-ordered")),
]  # fmt: skip

FUSED = "model.layers.0.mlp.experts"
OF_GATE_AND_UP = ("gate_up_proj", "gate_up_proj_scale_inv")


def _of_the_tensor(part: str, change: Any) -> Any:
    """A change of one of the tensors that hold all experts."""

    def damage(folder: Path) -> None:
        edit_tensors(folder, lambda tensors: change(parts.bits(tensors[f"{FUSED}.{part}"])))

    return damage


def _exchange(tensor: Tensor) -> None:
    tensor.copy_(tensor.flip(0))


def _reciprocal(tensor: Tensor) -> None:
    scales = tensor.view(torch.float32)
    scales.copy_(1 / scales)


def _halves(tensor: Tensor) -> None:
    tensor.copy_(tensor.roll(tensor.shape[1] // 2, 1))


def _across(tensor: Tensor) -> None:
    tensor.copy_(tensor.transpose(1, 2).reshape(tensor.shape).clone())


def _no_scales(folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.pop(f"{FUSED}.gate_up_proj_scale_inv"))


def _shifted_versions(name: str) -> tuple[str, str, Any, frozenset[str]]:
    return ("zero-points read by the other version's rule", name, parts.other_version, frozenset({BEYOND}))


UP = f"{EXPERT}.up_proj.weight"
EMBEDDINGS = "model.embed_tokens"
OTHERS: list[tuple[Any, ...]] = [
    _shifted_versions("gptq-v1"),
    _shifted_versions("gptq-v2"),
    *(
        (what, "tf-fp8-fused", damage, frozenset({rule}), subject)
        for what, damage, rule, subject in [
            ("experts exchanged in the tensor of all", _of_the_tensor("gate_up_proj", _exchange), BEYOND, UP),
            ("scales of experts exchanged in the tensor of all", _of_the_tensor(OF_GATE_AND_UP[1], _exchange), BEYOND,
             UP),
            ("gate and up exchanged in the tensor of all", _of_the_tensor("gate_up_proj", _halves), BEYOND, UP),
            ("experts transposed in the tensor of all", _of_the_tensor("down_proj", _across), BEYOND,
             f"{EXPERT}.down_proj.weight"),
            ("scales that divide instead of multiply", _of_the_tensor(OF_GATE_AND_UP[1], _reciprocal), BEYOND, UP),
            ("scales of the tensor of all written column by column", _of_the_tensor("down_proj_scale_inv", _across),
             BEYOND, f"{EXPERT}.down_proj.weight"),
            ("scales of the tensor of all lost", _no_scales, "not-as-declared", f"{FUSED}.gate_up_proj"),
            ("one scale of the tensor of all no number",
             _of_the_tensor(OF_GATE_AND_UP[1], lambda t: t[1, 0, :1].fill_(0x7FC00000)), "non-finite",
             f"{FUSED}.{OF_GATE_AND_UP[1]}"),
            ("one expert of the tensor all zero", _of_the_tensor("gate_up_proj", lambda t: t[1].zero_()), BEYOND, UP),
            ("one expert of the tensor with the opposite sign",
             _of_the_tensor("gate_up_proj", lambda t: t[1].bitwise_xor_(0x80)), BEYOND, UP),
        ]
    ),
    *(
        (what, "ct-fp8-embeddings", parts.on(change, EMBEDDINGS, "lm_head"), frozenset({rule}))
        for what, change, rule in [
            ("all values zero", parts.erased, BEYOND),
            ("one scale doubled", parts.one_scale_doubled, BEYOND),
            ("one scale that is no number", parts.no_number, "non-finite"),
            ("one negative scale", parts.one_negative_scale, "negative-scale"),
            ("rows under the scales of the row before", parts.shifted_rows, BEYOND),
            ("scales lost", parts.lost_scale, "not-as-declared"),
        ]
    ),
]  # fmt: skip
"""Done to one format alone: what, the checkpoint, the damage, the rule, and the subject where the damage says none."""
