"""Experts in integers as vLLM's kernel Marlin computes them, at the real shape.

    VLLM_PYTHON -P benchmarks/marlin_experts.py

Random experts in INT4 in groups of `--group` columns, converted and run by vLLM itself on one GPU, at the rows that a
GPU has of them where 1, 2 and 4 split every layer; against the same weights decoded, in float32. Prints the relative
error of the layer's output, and that against weights whose gate and up scales are in the order that vLLM is known to
take them (`q36eval.checkpoints.as_served`). Runs in vLLM's own environment, by functions of its 0.26, and imports
nothing of this project.
"""

import argparse
import types

import torch
import vllm
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
from vllm.model_executor.layers.fused_moe.oracle.int_wna16 import _process_weights_marlin
from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_permute_scales
from vllm.scalar_type import scalar_types

Tensor = torch.Tensor
BITS, PACKED, MIDDLE = 4, 8, 8


def quantized(experts: int, columns: int, rows: int, group: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes [E, columns, rows] from 0 to 15, and scales [E, groups, rows] of values with variance 1 / columns."""
    codes = torch.randint(0, 16, (experts, columns, rows), device="cuda")
    scales = torch.rand(experts, columns // group, rows, device="cuda") + 0.5
    return codes, (scales / (4.6 * columns**0.5)).to(dtype)


def decoded(codes: Tensor, scales: Tensor, group: int) -> Tensor:
    """Float32 [E, columns, rows]."""
    return (codes - MIDDLE).float() * scales.float().repeat_interleave(group, 1)


def packed(codes: Tensor) -> Tensor:
    """Int32 [E, columns / 8, rows], lowest first."""
    words = codes.unflatten(1, (-1, PACKED)) << (BITS * torch.arange(PACKED, device="cuda"))[:, None]
    words = words.sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def as_taken(scales: Tensor, share: int, hidden: int, group: int) -> Tensor:
    """The scale that each row gets: put in order by vLLM for `share` columns, read by its kernel as of `hidden`."""
    rows = torch.arange(float(scales.shape[2]), device="cuda").repeat(scales.shape[1], 1)
    place = marlin_permute_scales(rows, hidden, scales.shape[2], group)[0].long()
    stored = torch.stack([marlin_permute_scales(one, share, one.shape[1], group) for one in scales])
    taken = torch.empty_like(stored)
    taken[:, :, place] = stored
    return taken


def layer(x: Tensor, w13: Tensor, w2: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """The experts' output in float32."""
    out = torch.zeros(x.shape, device="cuda")
    for expert in range(len(w13)):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ w13[expert]).chunk(2, 1)
        out.index_add_(0, token, (torch.nn.functional.silu(gate) * up) @ w2[expert] * weights[token, slot, None])
    return out


def error(share: int, asked: argparse.Namespace) -> tuple[float, float]:
    """Relative errors of vLLM's output: against what is stored, and against its own order of scales."""
    dtype = torch.bfloat16
    q13, s13 = quantized(asked.experts, asked.hidden, 2 * share, asked.group, dtype)
    q2, s2 = quantized(asked.experts, share, asked.hidden, asked.group, dtype)
    x = torch.randn(asked.tokens, asked.hidden, device="cuda", dtype=dtype)
    weights, ids = torch.rand(asked.tokens, asked.experts, device="cuda").softmax(1).topk(asked.top, 1)
    holder = types.SimpleNamespace(intermediate_size_per_partition=share, num_groups_w13=s13.shape[1])
    holder.num_groups_w2 = s2.shape[1]
    no_order = torch.empty(asked.experts, 0, dtype=torch.int32, device="cuda")
    given = (packed(q13), packed(q2), s13.clone(), s2.clone(), no_order, no_order)
    w13, w2, ms13, ms2, g13, g2, o13, o2, *_ = _process_weights_marlin(
        holder, None, BITS, PACKED, asked.group, None, *given
    )
    out = fused_marlin_moe(
        x, w13, w2, None, None, ms13, ms2, weights.float(), ids.int(), quant_type_id=scalar_types.uint4b8.id,
        global_num_experts=asked.experts, g_idx1=g13, g_idx2=g2, sort_indices1=o13, sort_indices2=o2,
    )  # fmt: skip
    errors = []
    for scales in (s13, as_taken(s13, share, asked.hidden, asked.group)):
        right = layer(x, decoded(q13, scales, asked.group), decoded(q2, s2, asked.group), weights.float(), ids)
        errors.append(float((out.float() - right).norm() / right.norm()))
    return errors[0], errors[1]


def main() -> None:
    """A row a number of GPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=512, help="of an expert's gate and up projection")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top", type=int, default=8, help="experts a token")
    parser.add_argument("--tokens", type=int, default=512)
    asked = parser.parse_args()
    if not vllm.__version__.startswith("0.26."):
        parser.error(f"written for vLLM 0.26, and this is {vllm.__version__}")
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print("| GPUs | rows of a share | error against what is stored | against vLLM's own order |\n|---|---|---|---|")
    with set_current_vllm_config(VllmConfig()):
        for gpus in (1, 2, 4):
            share = asked.rows // gpus
            stored, own = error(share, asked)
            print(f"| {gpus} | {share} | {stored:.2e} | {own:.2e} |", flush=True)


if __name__ == "__main__":
    main()
