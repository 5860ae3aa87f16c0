"""Logits from final hidden states, accumulated and kept in float32."""

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone uses)
from torch import Tensor


def float32_logits(states: Tensor, weight: Tensor) -> Tensor:
    """Logits [T, V] of `states` [T, H] through the head `weight` [V, H], products accumulated in float32.

    Nothing is rounded to BF16 on the way: that would put noise of its own into a small divergence. On a GPU the product
    takes BF16 operands as they are; elsewhere they are widened first, which gives the same products.
    """
    if states.is_cuda and states.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(states, weight.T, out_dtype=torch.float32)
    return F.linear(states.float(), weight.float())
