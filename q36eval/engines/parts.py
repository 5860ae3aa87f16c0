"""Parts of a model that one engine can lend another: the unit in which damage is blamed.

An engine whose model is not in this process lends none: `Engine.model` says so.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from q36eval.engines.base import Engine

_IN_LAYER = (
    ("self-attention", ("self_attn",)),
    ("linear attention", ("linear_attn",)),
    ("routed experts", ("mlp.experts",)),
    ("shared expert", ("mlp.shared_expert",)),
    ("router gates", ("mlp.gate", "mlp.shared_expert_gate")),
    ("norms", ("input_layernorm", "post_attention_layernorm")),
)
_OUTSIDE = (("embeddings", "model.embed_tokens"), ("norms", "model.norm"), ("lm_head", "lm_head"))


@dataclass(frozen=True)
class Part:
    """One module with its class of tensors; `layer` is None for what belongs to no layer."""

    module: str
    tensor_class: str
    layer: int | None


def parts_of(engine: Engine) -> list[Part]:
    """Every module that holds weights, each exactly once, in the order of computation.

    Raises:
        EngineError: the engine keeps its model elsewhere.
        ValueError: a parameter that belongs to none of them, so that blame would have a hole.
    """
    modules = dict(engine.model.named_modules())
    parts = [Part(module, name, None) for name, module in _OUTSIDE[:1]]
    for layer in range(engine.model.config.num_hidden_layers):
        stems = ((name, f"model.layers.{layer}.{stem}") for name, stems in _IN_LAYER for stem in stems)
        parts += [Part(module, name, layer) for name, module in stems if module in modules]
    parts += [Part(module, name, None) for name, module in _OUTSIDE[1:]]
    held = tuple(f"{part.module}." for part in parts)
    homeless = [name for name, _ in engine.model.named_parameters() if not name.startswith(held)]
    if homeless:
        raise ValueError(f"{homeless[0]} belongs to no part")
    return parts


def differs(one: Engine, other: Engine, module: str) -> bool:
    """Whether a module computes anything else in one engine than in the other.

    That is weights, buffers (the scales of activations, and of a quantized KV cache), wrappers, or their settings.
    """
    mine, theirs = one.model.get_submodule(module), other.model.get_submodule(module)
    kinds = [
        [(name, type(child), child.extra_repr()) for name, child in side.named_modules()] for side in (mine, theirs)
    ]
    if kinds[0] != kinds[1]:
        return True
    left, right = (dict(side.named_parameters()) | dict(side.named_buffers()) for side in (mine, theirs))
    return left.keys() != right.keys() or any(not torch.equal(left[n].cpu(), right[n].cpu()) for n in left)


@contextmanager
def borrowing(borrower: Engine, lender: Engine, modules: Sequence[str]) -> Iterator[None]:
    """`borrower` computes with the lender's `modules` inside the block, and with its own again after it.

    A lender on another device (a reference kept in host memory) lends copies; only these take memory there.
    """
    own = {module: borrower.model.get_submodule(module) for module in modules}
    device = next(borrower.model.parameters()).device
    try:
        for module in modules:
            borrower.model.set_submodule(module, _on(lender.model.get_submodule(module), device))
        yield
    finally:
        for module, kept in own.items():
            borrower.model.set_submodule(module, kept)


def _on(module: nn.Module, device: torch.device) -> nn.Module:
    held = next(module.parameters(), None)
    return module if held is None or held.device == device else copy.deepcopy(module).to(device)
