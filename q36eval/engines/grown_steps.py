"""Decoding steps on a CPU: attention without copying keys for each query head, and keys that grow in place."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from q36eval.engines.qwen3_5_moe.fused_layers import covers

NAME = "steps by key heads"
"""Its name in a deployment's identity: other steps make another deployment."""
ROOM = 128
"""Columns added to keys and values at a time."""


def step_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
) -> tuple[Tensor, None]:
    """transformers' `sdpa` of one token a row: query heads that share keys are rows of one product.

    `query` [R, H, 1, D], `key` and `value` [R, K, T, D], the mask [R, 1, 1, T]; the output [R, 1, H, D]. transformers
    repeats keys and values H / K times if there is a mask, which took most of a step. The order of sums differs. Models
    with recorded numbers, several tokens and other settings use transformers.
    """
    rows, heads, tokens, width = query.shape
    of_all_heads = attention_mask is None or attention_mask.shape[1] == 1
    if tokens > 1 or not of_all_heads or settings.get("position_bias") is not None or covers(module.config):
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
        return out, None
    together = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    out = scaled_dot_product_attention(
        together, key, value, attn_mask=attention_mask, scale=settings.get("scaling"), is_causal=False
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """A layer's keys and values [R, K, T, D] as views of larger ones, into which a step's are written."""

    keys: Tensor
    values: Tensor
    _held: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the states of one token per row; several are appended by copying all."""
        if not self.is_initialized or key_states.shape[-2] > 1:
            appended: tuple[Tensor, Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return appended
        keys, values, held = self.keys, self.values, self._held
        width = keys.shape[-2] + 1
        # dropped rows moved them
        if held is None or held[0].data_ptr() != keys.data_ptr() or held[0].shape[-2] < width:
            held = self._held = _with_room(keys), _with_room(values)
        held[0][..., width - 1 : width, :] = key_states
        held[1][..., width - 1 : width, :] = value_states
        self.keys, self.values = both = held[0][..., :width, :], held[1][..., :width, :]
        return both


def _with_room(states: Tensor) -> Tensor:
    width = states.shape[-2]
    larger = states.new_empty(*states.shape[:-2], width + ROOM, states.shape[-1])
    larger[..., :width, :] = states
    return larger


def growing_cache(config: Any, device: torch.device) -> DynamicCache:
    """An empty cache for a model of that config, whose layers grow in place on a CPU."""
    cache = DynamicCache(config=config)
    if device.type == "cpu":
        cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
