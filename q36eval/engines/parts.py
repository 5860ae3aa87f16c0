"""Parts of a model that one engine can lend another: the units of attribution.

An engine whose model is in another process lends none: `Engine.model` raises.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from q36eval.checkpoints.architecture import layers_name
from q36eval.checkpoints.names import tensor_class
from q36eval.engines.base import Engine

_ORDER = (
    *("self-attention", "linear attention", "state-space layers", "convolutions"),
    *("routed experts", "shared expert", "dense MLP", "router gates", "norms", "other"),
)
"""The classes in a layer, roughly in the order of computation."""


@dataclass(frozen=True)
class Part:
    """One module with its class of tensors; `layer` is None outside the layers."""

    module: str
    tensor_class: str
    layer: int | None


def parts_of(engine: Engine) -> list[Part]:
    """Every module that holds weights, each exactly once, in the order of computation.

    Raises:
        EngineError: the engine's model is in another process.
        ValueError: a parameter belongs to none of them, so the attribution would be incomplete.
    """
    model = engine.model
    layers = layers_name(model)
    base = layers.rpartition(".")[0]
    around = [f"{base}.{name}" for name, module in model.get_submodule(base).named_children() if [*module.parameters()]]
    at = around.index(layers)
    parts = [part for name in around[:at] for part in _within(name, model.get_submodule(name), None)]
    for number, layer in enumerate(model.get_submodule(layers)):
        inside = _within(f"{layers}.{number}", layer, number)
        parts += sorted(inside, key=lambda part: _ORDER.index(part.tensor_class))
    head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    parts += [part for name in (*around[at + 1 :], head) for part in _within(name, model.get_submodule(name), None)]
    held = tuple(f"{part.module}." for part in parts)
    homeless = [name for name, _ in model.named_parameters() if not name.startswith(held)]
    if homeless:
        raise ValueError(f"{homeless[0]} belongs to no part")
    return parts


def _within(name: str, module: nn.Module, layer: int | None) -> list[Part]:
    """The parts of a module: itself if its matrices are of one class, else those of its children."""
    weights = {f"{name}.{each}": weight for each, weight in module.named_parameters()}
    matrices = [each for each, weight in weights.items() if weight.dim() > 1]
    kinds = {tensor_class(each) for each in matrices or weights}
    if len(kinds) == 1:
        return [Part(name, kinds.pop(), layer)]
    own = [each for each, _ in module.named_parameters(recurse=False)]
    if own:
        raise ValueError(f"{name}.{own[0]} belongs to no part")
    return [part for child, inner in module.named_children() for part in _within(f"{name}.{child}", inner, layer)]


def differs(one: Engine, other: Engine, module: str) -> bool:
    """Whether a module differs between two engines.

    That is in weights, buffers (the scales of activations, and of a quantized KV cache), wrappers, or their settings.
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
    """`borrower` computes with the lender's `modules` inside the block, and with its own again afterwards.

    A lender on another device (a reference in host memory) lends copies; only these take memory on the borrower's
    device.
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
