"""Weights that stay in their stored form on the device and are decoded when they are used, to the same bits.

A module whose weight is packed has, in the place of its parameter, the stored parts as buffers. Before its forward
pass the weight is decoded, after it the decoded copy is let go: what a model takes is its stored size and the largest
decoded weight. The experts of a layer are decoded by one sequence of operations over stacked parts where the format
allows that (`_Rows`), one by one elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from q36eval.checkpoints.formats.parts import unpack_fp4
from q36eval.checkpoints.gpu import has_triton
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import INPUT_PARTS, LogicalWeight, decode_parts

Parts = Mapping[str, Tensor]
Place = tuple[int, slice] | None
"""The expert and the rows of a fused parameter; None for all of it."""


@dataclass(frozen=True)
class _Rows:
    """How the parts of a format are stacked: row by row, with what belongs to a whole weight repeated for its rows."""

    values: str
    scale: str
    whole: str
    divides: bool


_FP4 = {
    "nvfp4-pack-quantized": _Rows("weight_packed", "weight_scale", "weight_global_scale", divides=True),
    "modelopt-nvfp4": _Rows("weight", "weight_scale", "weight_scale_2", divides=False),
}
_FP4_GROUP = 16
DECODED_AT_ONCE = 2**26
"""Values that are decoded at once: several float32 copies of them lie beside the weight."""


class PackedWeight(nn.Module):
    """The stored parts of one parameter, which is made of weights with their places.

    `decoded` is the parameter [..., out, in] in `dtype`, bit for bit what the loader makes of the same parts.
    """

    def __init__(
        self,
        shape: torch.Size,
        dtype: torch.dtype,
        weights: Sequence[tuple[Place, LogicalWeight]],
        parts: Sequence[Parts],
        device: torch.device,
    ) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self._schemes = [weight.scheme for _, weight in weights]
        self._places = [place for place, _ in weights]
        self._rows = _stacking(self._schemes, parts)
        self._names: list[list[str]] = []
        if self._rows is not None:
            self._stack(parts, self._rows, device)
        else:
            for at, own in enumerate(parts):
                self._names.append([part for part in own if part not in INPUT_PARTS])
                for part in self._names[at]:
                    self.register_buffer(f"{part}_{at}", own[part].to(device), persistent=False)

    def _stack(self, parts: Sequence[Parts], rows: _Rows, device: torch.device) -> None:
        """In the order of the parameter's rows, so that it is decoded in place."""
        order = sorted(range(len(parts)), key=self._first_row)
        for name in (rows.values, rows.scale):
            # together in host memory first: thousands of small copies to a device take longer than what they carry
            stacked = torch.cat([parts[at][name] for at in order])
            self.register_buffer(name, stacked.to(device), persistent=False)
        wholes = torch.cat([parts[at][rows.whole].reshape(1) for at in order])
        self.register_buffer(rows.whole, wholes.to(device), persistent=False)

    def _first_row(self, at: int) -> int:
        place = self._places[at]
        return 0 if place is None else place[0] * self.shape[1] + (place[1].start or 0)

    @property
    def fp4(self) -> tuple[Tensor, Tensor, Tensor, bool] | None:
        """Values, scales and scales of whole weights where they are stacked, and whether the last divide."""
        if self._rows is None:
            return None
        values, scales, wholes = (self.get_buffer(n) for n in (self._rows.values, self._rows.scale, self._rows.whole))
        return values, scales, wholes, self._rows.divides

    def decoded(self) -> Tensor:
        """The parameter."""
        target = torch.empty(self.shape, dtype=self.dtype, device=next(self.buffers()).device)
        if self._rows is not None:
            self._decode_rows(target.view(-1, self.shape[-1]), self._rows)
            return target
        for at, (place, scheme) in enumerate(zip(self._places, self._schemes, strict=True)):
            parts = {part: self.get_buffer(f"{part}_{at}") for part in self._names[at]}
            decode_parts(parts, scheme, target if place is None else target[place[0], place[1]])
        return target

    def _decode_rows(self, target: Tensor, rows: _Rows) -> None:
        """FP4 values under FP8 scales under one float32 scale a weight, in float32, as `formats` decodes each."""
        values, scales = self.get_buffer(rows.values), self.get_buffer(rows.scale)
        wholes = self.get_buffer(rows.whole)
        height = len(values) // len(wholes)
        if values.is_cuda and has_triton():
            from q36eval.checkpoints._quantization_kernels import decode_fp4_rows

            count, block = target.numel(), 4096
            decode_fp4_rows[(-(-count // block),)](
                values,
                scales,
                wholes,
                target,
                count,
                width=target.shape[-1],
                height=height,
                divides=rows.divides,
                rounds=rows.divides,
                block=block,
            )
            return
        step = max(DECODED_AT_ONCE // (height * self.shape[-1]), 1) * height
        for start in range(0, len(values), step):
            stop = min(start + step, len(values))
            whole = wholes[start // height : -(-stop // height)].repeat_interleave(height).unsqueeze(-1)
            scale = scales[start:stop].float()
            scale = scale / whole if rows.divides else scale * whole
            fp4 = unpack_fp4(values[start:stop]).view(stop - start, -1, _FP4_GROUP)
            decoded = (fp4 * scale.unsqueeze(-1)).flatten(-2)
            # compressed-tensors gives BF16, whatever the model computes in
            target[start:stop].copy_(decoded.bfloat16() if rows.divides else decoded)

    def extra_repr(self) -> str:
        """By which two are told apart that hold the same bytes."""
        formats = sorted({scheme.format for scheme in self._schemes})
        return f"{tuple(self.shape)}, {', '.join(formats)}"


def _stacking(schemes: Sequence[Scheme], parts: Sequence[Parts]) -> _Rows | None:
    """How they are stacked; None where they are not all of one format that can be, and of one shape."""
    rows = _FP4.get(schemes[0].format)
    if rows is None or any(scheme.format != schemes[0].format for scheme in schemes):
        return None
    if rows.divides and any(each[rows.whole].dim() == 0 for each in parts):
        return None  # the library divides in another precision then
    shapes = {(each[rows.values].shape, each[rows.scale].shape) for each in parts}
    return rows if len(shapes) == 1 else None


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
