"""Products and convolutions in BF16 on a CPU without instructions for it: in float32, rounded once.

On such CPUs torch multiplies BF16 in a loop without vector units. Products of BF16 numbers are exact in float32 and are
summed in float32 either way, so products of widened operands differ only in the order of their sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

NAME = "float32 products"
"""Its name in the identity of a deployment computed this way."""


class _State:
    installed = False


def needed(device: torch.device | str) -> bool:
    """Whether the device is a CPU on which torch has no fast product of BF16 matrices."""
    return torch.device(device).type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def install() -> None:
    """Use these products in this process wherever no gradient is needed; once."""
    if _State.installed:
        return
    _State.installed = True
    functional: Any = nn.functional
    functional.linear = _widened(functional.linear)
    functional.conv1d = _widened(functional.conv1d)
    functional.grouped_mm = _grouped(functional.grouped_mm)


def _widened(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`own(input, weight, bias, …)` with all three in float32 if the first two are widened."""

    def product(states: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
        if not _is_widened(states, weight):
            return own(states, weight, bias, *args, **kwargs)
        wide = None if bias is None else bias.float()
        return own(states.float(), weight.float(), wide, *args, **kwargs).to(states.dtype)

    return product


def _grouped(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def grouped_mm(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor | None = None, **others: Any) -> Tensor:
        if offs is None or mat_b.dim() != 3 or any(others.values()) or not _is_widened(mat_a, mat_b):
            return own(mat_a, mat_b, offs=offs, **others)
        return _by_group(mat_a, mat_b, offs.tolist())

    return grouped_mm


def _is_widened(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype == torch.bfloat16 and left.device.type == "cpu" and not torch.is_grad_enabled()


def _by_group(rows: Tensor, weights: Tensor, ends: list[int]) -> Tensor:
    """Rows [N, K], those before `ends[g]` and after the last end times `weights[g]` [K, M]: [N, M]; no others."""
    product = torch.zeros(len(rows), weights.shape[2])
    begin = 0
    for group, end in enumerate(ends):
        if begin < end:
            torch.mm(rows[begin:end].float(), weights[group].float(), out=product[begin:end])
        begin = end
    return product.to(rows.dtype)
