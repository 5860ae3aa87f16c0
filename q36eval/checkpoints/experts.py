"""Routed experts on a GPU: rows sorted by expert, products of each with its own weights, and their weighted sum.

Nothing waits for the device, so that a step can be recorded. Where experts have few rows each, as in decoding, what a
product takes is the time to read the weights: a kernel reads every tile once, packed ones as they are stored.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints.gpu import has_triton
from q36eval.checkpoints.packed import PackedWeight

FEW_ROWS = 16
"""Up to so many rows an expert on average, a kernel of ours takes less time than the grouped product."""

ORDERED_AT_ONCE = 2048
"""Rows that are sorted by one launch."""

BLOCK_N, BLOCK_K = 64, 128


class Rows:
    """`chosen` experts [T, K] in the order of the experts: which token each row has, and where each expert's end."""

    def __init__(self, chosen: Tensor, experts: int) -> None:
        flat, device = chosen.reshape(-1), chosen.device
        count = len(flat)
        if count <= ORDERED_AT_ONCE:
            from q36eval.checkpoints._expert_kernels import order_by_expert

            order, self.place, self.expert = (torch.empty(count, dtype=torch.long, device=device) for _ in range(3))
            self.ends = torch.empty(experts, dtype=torch.int32, device=device)
            block = 1 << (count - 1).bit_length()
            order_by_expert[experts,](flat, order, self.place, self.expert, self.ends, count, block=block)
        else:
            self.expert, order = torch.sort(flat, stable=True)
            counts = torch.histc(self.expert.int(), bins=experts, min=0, max=experts - 1)
            self.ends = counts.cumsum(0, dtype=torch.int32)
            self.place = torch.empty_like(order).scatter_(0, order, torch.arange(count, device=device))
        self.source = order // chosen.shape[-1]
        self.few = few_rows(count, experts)


def few_rows(count: int, experts: int) -> bool:
    """Whether `count` rows are few for so many experts."""
    return count <= FEW_ROWS * experts


def times(rows: Tensor, module: nn.Module, name: str, order: Rows, part: slice = slice(None)) -> Tensor:
    """`rows` [N, in] in that order times the weights of their experts, or those outputs of them: [N, out]."""
    packed = getattr(module, f"packed_{name}", None)
    if order.few and packed is not None and kept_packed(packed):
        return _by_kernel(rows, packed, order, part)
    weight: Tensor = getattr(module, name)
    if order.few and weight.shape[1] % BLOCK_N == 0 and weight.shape[2] % BLOCK_K == 0:
        return _by_kernel(rows, weight, order, part)
    return nn.functional.grouped_mm(rows, weight[:, part].transpose(1, 2), offs=order.ends)


def kept_packed(packed: PackedWeight) -> bool:
    """Whether products are taken with it as it is stored."""
    outputs, inputs = packed.shape[-2:]
    return packed.fp4 is not None and outputs % (2 * BLOCK_N) == 0 and inputs % BLOCK_K == 0


def _by_kernel(rows: Tensor, weight: "Tensor | PackedWeight", order: Rows, part: slice) -> Tensor:
    from q36eval.checkpoints._expert_kernels import products

    experts, expert_rows, inputs = weight.shape
    begin, end, _ = part.indices(expert_rows)
    outputs = end - begin
    out = torch.empty(len(rows), outputs, dtype=rows.dtype, device=rows.device)
    fp4 = weight.fp4 if isinstance(weight, PackedWeight) else None
    values, scales, wholes = (weight, weight, weight) if fp4 is None else fp4[:3]
    products[experts, outputs // BLOCK_N](
        rows.contiguous(),
        values,
        scales,
        wholes,
        order.ends,
        out,
        1 if fp4 is None else experts * expert_rows // len(fp4[2]),
        begin,
        expert_rows,
        outputs=outputs,
        inputs=inputs,
        is_packed=fp4 is not None,
        divides=fp4 is not None and fp4[3],
        block_m=16 if len(rows) <= FEW_ROWS * experts // 2 else 32,
        block_n=BLOCK_N,
        block_k=BLOCK_K,
        num_warps=4,
        num_stages=3,
    )
    return out


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) times up, [N, I] each, rows at any stride."""
    from q36eval.checkpoints._expert_kernels import gated as kernel

    count, width = gate.shape
    out = torch.empty(count, width, dtype=gate.dtype, device=gate.device)
    block = min(1024, 1 << (width - 1).bit_length())
    kernel[count, -(-width // block)](gate, up, out, width, gate.stride(0), up.stride(0), block=block)
    return out


def routed(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The likeliest experts of every row of `logits` [T, E] and their weights, which sum to one: [T, K] each."""
    from q36eval.checkpoints._expert_kernels import routed as kernel

    tokens, experts = logits.shape
    scores = torch.empty(tokens, top_k, dtype=logits.dtype, device=logits.device)
    chosen = torch.empty(tokens, top_k, dtype=torch.long, device=logits.device)
    slots = 1 << (top_k - 1).bit_length()
    kernel[tokens,](logits, scores, chosen, experts=experts, top_k=top_k, slots=slots, num_warps=1)
    return scores, chosen


def with_shared(rows: Tensor, shared: Tensor, gate: Tensor) -> Tensor:
    """What the routed experts gave [T, H] and the shared one [T, H] under its gate [T, 1] together: [T, H]."""
    from q36eval.checkpoints._expert_kernels import with_shared as kernel

    tokens, width = rows.shape
    out = torch.empty_like(rows)
    block = min(1024, 1 << (width - 1).bit_length())
    kernel[tokens, -(-width // block)](rows, shared, gate, out, width, block=block)
    return out


def weighted_sum(rows: Tensor, order: Rows, weights: Tensor) -> Tensor:
    """Each token's rows [N, H], in that order, times their weights [T, K], summed: [T, H]."""
    from q36eval.checkpoints._expert_kernels import weighted_sum as kernel

    tokens, top_k = weights.shape
    width = rows.shape[-1]
    out = torch.empty(tokens, width, dtype=rows.dtype, device=rows.device)
    block = min(1024, 1 << (width - 1).bit_length())
    kernel[tokens, -(-width // block)](rows, order.place, weights.contiguous(), out, width, top_k=top_k, block=block)
    return out


def stays_packed(packed: PackedWeight, arguments: Sequence[Any]) -> bool:
    """Whether `forward` takes products with a weight as it is stored, given its states and chosen experts."""
    states, chosen = arguments[:2]
    return states.is_cuda and has_triton() and few_rows(chosen.numel(), packed.shape[0]) and kept_packed(packed)


def _shape(module: Any) -> torch.Size:
    """That of gate and up, without decoding them."""
    packed = getattr(module, "packed_gate_up_proj", None)
    shape: torch.Size = (module.gate_up_proj if packed is None else packed).shape
    return shape


def forward(module: Any, states: Tensor, chosen: Tensor, weights: Tensor, gate: Any, up: Any, down: Any) -> Tensor:
    """[T, H] from `states` [T, H], the `chosen` experts [T, K] and their `weights`.

    `gate`, `up` and `down` quantize inputs, None where they stay; `gate` is `up` where both do the same.
    """
    experts, outputs, _ = _shape(module)
    order = Rows(chosen, experts)
    if gate is up:
        rows = states[order.source] if gate is None else gate(states, order.expert, order.source)
        both = times(rows, module, "gate_up_proj", order)
        inner = gated(*both.chunk(2, dim=-1))
    else:
        half = outputs // 2
        inner = gated(
            times(gate(states, order.expert, order.source), module, "gate_up_proj", order, slice(0, half)),
            times(up(states, order.expert, order.source), module, "gate_up_proj", order, slice(half, 2 * half)),
        )
    if down is not None:
        inner = down(inner, order.expert)
    return weighted_sum(times(inner, module, "down_proj", order), order, weights)
