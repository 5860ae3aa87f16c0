"""Norms, attention, the short convolution, experts and decoding steps of the model on a GPU, each by one kernel.

transformers has them as sequences of plain operations, each of which reads and writes everything. `install` replaces
them by dispatchers, once per process: tensors on a GPU use a kernel, others the original code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as modeling

from q36eval.checkpoints import experts
from q36eval.checkpoints.gpu import has_triton
from q36eval.engines.qwen3_5_moe import attention, kernel_choices

VERSION = 4
"""Raised with every change that may move a number on a GPU; part of the identity of deployments on a GPU."""

TIMES = 32
"""Tokens of the convolution per program."""


MODEL_TYPES = ("qwen3_5_moe_text",)
"""The models supported by these kernels, and by steps with fixed memory."""


def covers(config: Any) -> bool:
    """Whether they support the model of a transformers config."""
    return config.model_type in MODEL_TYPES


class _State:
    installed = False
    on = True


def install() -> None:
    """Install the dispatchers, unless they are installed or nothing can be compiled here."""
    if _State.installed or not has_triton():
        return
    _State.installed = True
    norm, gated = modeling.Qwen3_5MoeRMSNorm, modeling.Qwen3_5MoeRMSNormGated
    norm.forward = _dispatched(_rms_norm, norm.forward)
    gated.forward = _dispatched(_gated_rms_norm, gated.forward)
    modeling.causal_conv1d_fn = _convolution(modeling.causal_conv1d_fn)
    plain = modeling.Qwen3_5MoeExperts
    plain.forward = _dispatched(_experts, plain.forward)
    plain.reads_packed = lambda self, arguments, weight: (
        _is_on(arguments[0]) and experts.stays_packed(weight, arguments)
    )
    router, block, mlp = modeling.Qwen3_5MoeTopKRouter, modeling.Qwen3_5MoeSparseMoeBlock, modeling.Qwen3_5MoeMLP
    router.forward = _dispatched(_route, router.forward)
    block.forward = _dispatched(_mixture, block.forward)
    mlp.forward = _dispatched(_mlp, mlp.forward)
    linear = modeling.Qwen3_5MoeGatedDeltaNet
    linear.forward = _linear(linear.forward)
    attention.install(_is_on)
    kernel_choices.settle()


@contextmanager
def plain_layers() -> Iterator[None]:
    """In the block everything is computed by transformers' own code."""
    before, _State.on = _State.on, False
    try:
        yield
    finally:
        _State.on = before


def _is_on(states: Tensor) -> bool:
    return _State.on and states.is_cuda and states.dtype == torch.bfloat16


def _dispatched(fused: Callable[..., Any], before: Callable[..., Any]) -> Callable[..., Any]:
    def forward(self: Any, states: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (fused if _is_on(states) else before)(self, states, *args, **kwargs)

    return forward


def _rms_norm(self: Any, x: Tensor) -> Tensor:
    from q36eval.engines.qwen3_5_moe._layer_kernels import rms_norm

    width = x.shape[-1]
    rows = x.reshape(-1, width)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    rms_norm[len(rows),](rows, self.weight, out, rows.stride(0), width, self.eps, block=1 << (width - 1).bit_length())
    return out.view(x.shape)


def _gated_rms_norm(self: Any, x: Tensor, gate: Tensor) -> Tensor:
    from q36eval.engines.qwen3_5_moe._layer_kernels import gated_rms_norm

    width = x.shape[-1]
    x, gate = x.contiguous(), gate.contiguous()
    out = torch.empty_like(x)
    rows, block = x.numel() // width, 8
    gated_rms_norm[-(-rows // block),](x, gate, self.weight, out, rows, self.variance_epsilon, width=width, block=block)
    return out


def _convolution(before: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def causal_conv1d_fn(
        hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **kwargs: Any
    ) -> Tensor:
        if bias is not None or activation != "silu" or not _is_on(hidden_states):
            return before(hidden_states, weight, bias, activation=activation, **kwargs)
        from q36eval.engines.qwen3_5_moe._layer_kernels import convolved

        batch, channels, length = hidden_states.shape
        out = torch.empty(batch, length, channels, dtype=hidden_states.dtype, device=hidden_states.device)
        block = 256
        convolved[-(-channels // block), -(-length // TIMES), batch](
            hidden_states,
            weight.contiguous(),
            out,
            length,
            channels,
            *hidden_states.stride(),
            taps=weight.shape[-1],
            times=TIMES,
            block=block,
        )
        return out.transpose(1, 2)

    return causal_conv1d_fn


def _experts(self: Any, states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    return experts.forward(self, states, top_k_index, top_k_weights, None, None, None)


def _route(self: Any, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    logits = torch.nn.functional.linear(states.reshape(-1, self.hidden_dim), self.weight)
    if logits.shape[1] & (logits.shape[1] - 1):
        shares, chosen = torch.topk(logits.softmax(-1, dtype=torch.float), self.top_k, dim=-1)
        return logits, (shares / shares.sum(-1, keepdim=True)).to(logits.dtype), chosen
    scores, chosen = experts.routed(logits, self.top_k)
    return logits, scores, chosen


def _mixture(self: Any, states: Tensor) -> Tensor:
    rows = states.view(-1, states.shape[-1])
    shared = self.shared_expert(rows)
    _, weights, chosen = self.gate(rows)
    mixed = experts.with_shared(self.experts(rows, chosen, weights), shared, self.shared_expert_gate(rows))
    return mixed.view(states.shape)


def _mlp(self: Any, states: Tensor) -> Tensor:
    gate, up = self.gate_proj(states), self.up_proj(states)
    inner = experts.gated(gate.view(-1, gate.shape[-1]), up.view(-1, up.shape[-1]))
    down: Tensor = self.down_proj(inner.view(gate.shape))
    return down


def _linear(before: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(
        self: Any, hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        layer = None if cache_params is None else cache_params.layers[self.layer_idx]
        if getattr(layer, "writes_in_place", False) and hidden_states.shape[1] == 1 and _is_on(hidden_states):
            return _linear_step(self, hidden_states, layer)
        return before(self, hidden_states, cache_params, attention_mask, **kwargs)

    return forward


def _linear_step(self: Any, hidden_states: Tensor, layer: Any) -> Tensor:
    """One token of every row [R, 1, H] through a Gated DeltaNet layer, whose states are updated in place."""
    from q36eval.engines.qwen3_5_moe._layer_kernels import convolved_step, delta_step

    states = hidden_states[:, 0]
    rows, channels = len(states), self.conv_dim
    mixed, z = self.in_proj_qkv(states), self.in_proj_z(states)
    b, a = self.in_proj_b(states), self.in_proj_a(states)
    new, block = torch.empty_like(mixed), 256
    weight = self.conv1d.weight
    conv, recurrent = layer.conv_states[0], layer.recurrent_states[0]
    convolved_step[rows, -(-channels // block)](mixed, conv, weight, new, channels, taps=weight.shape[-1], block=block)
    output = torch.empty(rows * self.num_v_heads, self.head_v_dim, dtype=states.dtype, device=states.device)
    width = min(32, self.head_v_dim)
    delta_step[rows * self.num_v_heads, self.head_v_dim // width](
        new,
        a,
        b,
        self.A_log,
        self.dt_bias,
        recurrent,
        output,
        channels,
        heads=self.num_v_heads,
        key_heads=self.num_k_heads,
        keys=self.head_k_dim,
        values=self.head_v_dim,
        block=width,
    )
    normed = self.norm(output, z.reshape(-1, self.head_v_dim))
    out: Tensor = self.out_proj(normed.view(rows, 1, -1))
    return out
