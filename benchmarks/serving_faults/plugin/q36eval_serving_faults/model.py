"""Faults of what the model computes: rotation, norms, gates, the KV cache's numbers, embeddings, logits, rows."""

from typing import Any

from .switch import active, wrapped

ROPE_BASE = 10_000_000.0
"""The base of the large Qwen3.6 models; the sandbox names 10,000, SmolLM2 100,000."""
SMALLER = 2.0**-13
"""How small the cached values are, which a calibrated scale would have made up for: FP8 holds nothing below 2^-10."""
BIASED_TOKENS, BIAS = 16, 2.0
"""A bias of an earlier request that stayed: on so many tokens, by so many nats."""
ROWS = 4
"""Rows are mixed only where at least so many requests answer together."""

_applied = ""
_kept: "list[tuple[Any, Any]]" = []


def _switch(runner: Any) -> None:
    """Undo what the last fault changed in place, and change what this one does."""
    global _applied
    name = active()
    if name == _applied:
        return
    while _kept:
        tensor, before = _kept.pop()
        tensor.copy_(before)
    if name == "rope-base":
        for module in _modules(runner, "cos_sin_cache"):
            cache = module.cos_sin_cache
            base, module.base = module.base, ROPE_BASE
            if base == ROPE_BASE:
                raise RuntimeError(f"the model's base is {ROPE_BASE:,.0f}: this fault would change nothing")
            _change(cache, module._compute_cos_sin_cache().to(cache.dtype))
            module.base = base
    if name == "norm-offset":
        for attention in _modules(runner, "q_norm"):
            for norm in (attention.q_norm, attention.k_norm):
                _change(norm.weight.data, norm.weight.data - 1.0)
    _applied = name


def _modules(runner: Any, attribute: str) -> "list[Any]":
    named = [each for each in runner.model.modules() if hasattr(each, attribute)]
    if not named:
        raise RuntimeError(f"no module has {attribute}: this fault cannot be made here")
    return named


def _change(tensor: Any, value: Any) -> None:
    _kept.append((tensor, tensor.clone()))
    tensor.copy_(value)


def _step(original: Any, self: Any, *arguments: Any, **named: Any) -> Any:
    _switch(self)
    return original(self, *arguments, **named)


def _projected(original: Any, self: Any, qkv: Any, positions: Any) -> Any:
    """Queries, keys, values and the output's gate of one of Qwen's attention layers."""
    q, k, v, gate = original(self, qkv, positions)
    return q, k, v, None if active() == "output-gate" else gate


def _attended(original: Any, self: Any, q: Any, k: Any, v: Any, *arguments: Any, **named: Any) -> Any:
    """One attention layer of any model, from rotated queries and keys."""
    import torch

    if active() == "kv-scales":
        k = k.to(torch.float8_e4m3fn).to(k.dtype)
        v = (v * SMALLER).to(torch.float8_e4m3fn).to(v.dtype) / SMALLER
    return original(self, q, k, v, *arguments, **named)


def _embedded(original: Any, self: Any, input_ids: Any) -> Any:
    if active() == "token-shift":
        input_ids = (input_ids + 1) % self.embed_tokens.org_vocab_size
    return original(self, input_ids)


def _logits(original: Any, self: Any, hidden_states: Any) -> Any:
    logits = original(self, hidden_states)
    name = active()
    if logits is None:
        return logits
    if name == "token-shift":
        return logits.roll(-1, -1)
    if name == "logit-bias":
        logits = logits.clone()
        logits[..., ::61][..., :BIASED_TOKENS] += BIAS
    return logits


def _sampled(original: Any, self: Any, logits: Any, *arguments: Any, **named: Any) -> Any:
    """Tokens drawn from the logits of each row; with `rows-mixed` two requests get each other's."""
    if active() == "rows-mixed" and logits is not None and len(logits) >= ROWS:
        logits = logits.clone()
        logits[[0, 1]] = logits[[1, 0]]
    return original(self, logits, *arguments, **named)


def install() -> None:
    """Wrap what both families' text models compute, and the step before which faults are switched."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.models.llama import LlamaForCausalLM, LlamaModel
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLMBase
    from vllm.model_executor.models.qwen3_next import Qwen3NextAttention, Qwen3NextModel
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrapped(GPUModelRunner, "execute_model", _step)
    wrapped(GPUModelRunner, "_sample", _sampled)
    wrapped(Attention, "forward", _attended)
    wrapped(Qwen3NextAttention, "_project_qkv_gate", _projected)
    for each in (LlamaModel, Qwen3NextModel):
        wrapped(each, "embed_input_ids", _embedded)
    for each in (LlamaForCausalLM, Qwen3_5ForCausalLMBase):
        wrapped(each, "compute_logits", _logits)
