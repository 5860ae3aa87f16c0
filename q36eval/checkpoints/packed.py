"""Weights that stay in their stored form on the device and are decoded when they are used, to the same bits.

A module whose weight is packed has, in the place of its parameter, the stored parts as buffers. Before its forward
pass the weight is decoded, after it the decoded copy is let go: what a model takes is its stored size and the largest
decoded weight. The experts of a layer are decoded together where they are stored alike (`stacking`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints.expert_stacks import FP4, Stack, covers, decode_each, decode_stack, fp4_rows
from q36eval.checkpoints.stored_groups import Parts
from q36eval.checkpoints.weights import INPUT_PARTS

DECODED_AT_ONCE = 2**25
"""Values that are decoded at once: several float32 copies of them lie beside the weight. With twice as many the head
of the 35B shape takes more memory than the experts of a layer."""


class PackedWeight(nn.Module):
    """The stored parts of one parameter, which is made of stacks of weights.

    `decoded` is the parameter [..., out, in] in `dtype`, bit for bit what the loader makes of the same parts.
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, stacks: Sequence[tuple[Stack, Parts, bool]]) -> None:
        """`stacks`: each with its parts on the device, and whether they are decoded together."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self._stacks = [
            (stack.scheme, stack.places, is_one, covers(stack.places, shape)) for stack, _, is_one in stacks
        ]
        self._names: list[list[str]] = []
        for at, (_, parts, _) in enumerate(stacks):
            self._names.append([part for part in parts if part not in INPUT_PARTS])
            for part in self._names[at]:
                self.register_buffer(f"{part}_{at}", parts[part], persistent=False)

    def _parts(self, at: int) -> Parts:
        return {part: self.get_buffer(f"{part}_{at}") for part in self._names[at]}

    @property
    def fp4(self) -> tuple[Tensor, Tensor, Tensor, bool] | None:
        """Values, scales and scales of whole weights where all are FP4 alike, and whether the last divide."""
        scheme, _, is_one, in_order = self._stacks[0]
        if len(self._stacks) > 1 or not is_one or scheme.format not in FP4 or not in_order:
            return None
        return fp4_rows(self._parts(0), scheme)

    def decoded(self) -> Tensor:
        """The parameter."""
        target = torch.empty(self.shape, dtype=self.dtype, device=next(self.buffers()).device)
        for at, (scheme, places, is_one, in_order) in enumerate(self._stacks):
            if is_one:
                decode_stack(self._parts(at), scheme, places, target, DECODED_AT_ONCE, in_order)
            else:
                decode_each(self._parts(at), scheme, places, target)
        return target

    def extra_repr(self) -> str:
        """By which two are told apart that hold the same bytes."""
        formats = sorted({scheme.format for scheme, *_ in self._stacks})
        return f"{tuple(self.shape)}, {', '.join(formats)}"


def pack(model: nn.Module, packed: Mapping[str, PackedWeight]) -> None:
    """Put each packed weight in the place of the parameter of that name, in modules as they will be used."""
    for name, weight in packed.items():
        owner_name, _, attribute = name.rpartition(".")
        owner = model.get_submodule(owner_name)
        del owner._parameters[attribute]
        owner.add_module(f"packed_{attribute}", weight)
        if not isinstance(owner, _Decoding):
            owner.__class__ = _decoding(type(owner))
            owner.register_forward_pre_hook(_decode)
            owner.register_forward_hook(_let_go, always_call=True)
        owner.decoded_now = {}  # type: ignore[assignment]


class _Decoding:
    """A module with packed weights, which lie in `decoded_now` while it computes."""

    decoded_now: dict[str, Tensor]


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {}


def _decoding(kind: type[nn.Module]) -> type[nn.Module]:
    """That class of module with its weights decoded when they are looked up."""
    if kind not in _CLASSES:

        def look_up(self: Any, attribute: str) -> Any:
            packed = self.__dict__.get("_modules", {}).get(f"packed_{attribute}")
            if packed is None:
                return kind.__getattr__(self, attribute)
            now = self.__dict__["decoded_now"]
            return now[attribute] if attribute in now else packed.decoded()

        _CLASSES[kind] = type(kind.__name__, (_Decoding, kind), {"__getattr__": look_up})
    return _CLASSES[kind]


def _decode(module: Any, arguments: Any) -> None:
    reads_packed = getattr(module, "reads_packed", None)
    for name, child in module.named_children():
        if isinstance(child, PackedWeight) and not (reads_packed is not None and reads_packed(arguments, child)):
            module.decoded_now[name.removeprefix("packed_")] = child.decoded()


def _let_go(module: Any, arguments: Any, output: Any) -> None:
    module.decoded_now.clear()


def weight_bytes(model: nn.Module) -> int:
    """What a model's weights take where they lie: parameters, and the parts of packed ones."""
    parts = (buffer for module in model.modules() if isinstance(module, PackedWeight) for buffer in module.buffers())
    return sum(parameter.nbytes for parameter in model.parameters()) + sum(part.nbytes for part in parts)
