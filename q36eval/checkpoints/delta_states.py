"""States of the linear layers as an engine stores them: in another dtype than the float32 that they are computed in.

Between two passes over a sequence (chunks of a prompt, steps of decoding) a Gated DeltaNet layer keeps a recurrent
state and the last inputs of its convolution. vLLM stores the first in the dtype that it is told or that the
configuration names (`mamba_ssm_dtype`; https://github.com/vllm-project/vllm/pull/34489), SGLang's convolution state
goes by `SGLANG_MAMBA_CONV_DTYPE`. Where activations are FP16, vLLM was also seen to overflow in what it reads from a
float32 state (https://github.com/vllm-project/vllm/issues/54308); that is not emulated. A value beyond the range of
FP16 is stored as an infinity, and what is computed from it is no number: nothing saturates here either.

Decoding rounds after every token, as engines do. A text that is scored is read `CHUNK` tokens at a time and rounded
after each: more often than an engine that reads a prompt in chunks of thousands, less often than one that decodes.

What is no number stays causal: where many tokens are read at once, a masked key that is NaN would still make NaN of the
scores before it (NaN - infinity), and an overflow would seem to begin with the text. So full-attention layers compute
without such tokens, and every token from the first of them on is NaN, as it is where one is read after the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeAttention, Qwen3_5MoeGatedDeltaNet

from q36eval.checkpoints.state_dtypes import check_state_dtype

CHUNK = 64
"""Tokens that are read between two roundings: transformers' own chunk, so nothing else is computed otherwise."""


class RoundedStates(Qwen3_5MoeGatedDeltaNet):  # type: ignore[misc]  # transformers has no types
    """A Gated DeltaNet layer whose states pass through other dtypes; made of a plain one by `install`."""

    recurrent_dtype: torch.dtype | None
    conv_dtype: torch.dtype | None

    def extra_repr(self) -> str:
        """By which two layers are told apart."""
        return f"recurrent_state={self.recurrent_dtype}, conv_state={self.conv_dtype}"

    def forward(
        self, hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """[B, T, H] from [B, T, H]; the states in the cache are rounded after every chunk."""
        layer = LinearAttentionLayer() if cache_params is None else cache_params.layers[self.layer_idx]
        if getattr(layer, "reads_only", False):
            layer = layer.own()
        states = _OneLayer(self.layer_idx, layer)
        length = hidden_states.shape[1]
        outputs = []
        for begin in range(0, length, CHUNK):
            part = slice(begin, begin + CHUNK)
            if length - begin == CHUNK + 1:  # one token alone would be taken for a step of decoding
                part = slice(begin, length)
            elif length > 1 and length - begin == 1:
                break
            fits = attention_mask is not None and attention_mask.shape[1] == length
            mask = attention_mask[:, part] if attention_mask is not None and fits else attention_mask
            outputs.append(super().forward(hidden_states[:, part], states, mask, **kwargs))
            _round(layer.recurrent_states, self.recurrent_dtype)
            _round(layer.conv_states, self.conv_dtype)
        return torch.cat(outputs, dim=1)


def _causally(attend: Callable[..., Any], hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    """What a full-attention layer makes of [B, T, H]; a token that is no number changes none before it."""
    broken = ~hidden_states.isfinite().all(-1, keepdim=True)  # [B, T, 1]
    if hidden_states.shape[1] == 1 or not bool(broken.any()):
        return attend(hidden_states, *args, **kwargs)
    output, *rest = attend(hidden_states.masked_fill(broken, 0), *args, **kwargs)
    return output.masked_fill(broken.cummax(1).values, torch.nan), *rest


class _OneLayer:
    """The part of a cache that one layer uses."""

    def __init__(self, index: int, layer: Any) -> None:
        self.layers, self._layer = {index: layer}, layer

    def has_previous_state(self, layer_idx: int, state_idx: int = 0) -> bool:
        return bool(self._layer.has_previous_state[state_idx])

    def update_conv_state(self, states: Tensor, layer_idx: int, **kwargs: Any) -> Tensor:
        updated: Tensor = self._layer.update_conv_state(states, **kwargs)
        return updated

    def update_recurrent_state(self, states: Tensor, layer_idx: int, **kwargs: Any) -> Tensor:
        updated: Tensor = self._layer.update_recurrent_state(states, **kwargs)
        return updated


def _round(states: dict[int, Tensor], dtype: torch.dtype | None) -> None:
    if dtype is not None:
        for state in states.values():
            state.copy_(state.to(dtype))


def install(model: nn.Module, recurrent: str | None, conv: str | None) -> int:
    """Let every linear layer keep its states in those dtypes, None as they are; returns how many layers that are.

    Raises:
        UsageError: a dtype that is none of `STATE_DTYPES`.
    """
    check_state_dtype(recurrent)
    check_state_dtype(conv)
    if recurrent is None and conv is None:
        return 0
    for module in model.modules():
        if isinstance(module, Qwen3_5MoeAttention):
            module.forward = partial(_causally, module.forward)  # its type stays: attribution tells layers by it
    layers = [module for module in model.modules() if isinstance(module, Qwen3_5MoeGatedDeltaNet)]
    for layer in layers:
        layer.__class__ = RoundedStates
        layer.recurrent_dtype = None if recurrent is None else getattr(torch, recurrent)
        layer.conv_dtype = None if conv is None else getattr(torch, conv)
    return len(layers)
