"""Faults of loading: made of the weights while vLLM reads them."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from .switch import active, wrapped

UP_OVER_GATE = 2.0
STALE = 0.1
"""An earlier state of the weights, emulated: each is moved by noise of this share of its tensor's own deviation."""


def first_scale_for_gate_and_up(weights: "dict[str, Any]") -> "dict[str, Any]":
    """As vLLM fuses NVFP4: values of up are read by the global scale of gate, which is half of their own."""
    ups = [name for name in weights if name.endswith(".up_proj.weight")]
    for name in [name for name in ups if ".experts." in name] or ups:
        weights[name] = weights[name] / UP_OVER_GATE
    return weights


def another_models(weights: "dict[str, Any]", part: str = "") -> "dict[str, Any]":
    """Weights as they were before: same names and shapes, other values; of those whose name holds `part`."""
    import torch

    generator = torch.Generator().manual_seed(23)
    for name, weight in weights.items():
        if weight.ndim > 1 and part in name:
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std() * STALE
            weights[name] = (weight.float() + noise).to(weight.dtype)
    return weights


CHANGES = {
    "fused-scale": first_scale_for_gate_and_up,
    "stale-layers": partial(another_models, part=".layers."),
    "stale-model": another_models,
}


def install() -> None:
    """Wrap the loading of both families' text models."""
    from vllm.model_executor.models.llama import LlamaForCausalLM
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForCausalLMBase

    def load(original: Any, self: Any, weights: "Iterable[tuple[str, Any]]") -> Any:
        change = CHANGES.get(active())
        if change is None:
            return original(self, weights)
        return original(self, iter(change({name: weight.clone() for name, weight in weights}).items()))

    for each in (LlamaForCausalLM, Qwen3_5ForCausalLMBase):
        wrapped(each, "load_weights", load)
