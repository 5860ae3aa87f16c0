"""The experts of GPT-OSS in a GGUF, read as transformers' checkpoint has them.

Source: `conversion/gpt_oss.py` of llama.cpp (`modify_tensors`, `repack_mxfp4`). The converter takes gate and up, whose
outputs alternate in `gate_up_proj`, apart; a float parameter [experts, in, out] it transposes; and of a block of MXFP4
its bytes hold values 0 and 16, 1 and 17, … after the scale, where the checkpoint's hold 0 and 1, 2 and 3, ….
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from q36eval.checkpoints.gguf.types import FLOATS
from q36eval.checkpoints.header import TensorEntry
from q36eval.errors import UsageError

if TYPE_CHECKING:
    import torch

MXFP4 = "MXFP4"
BLOCKS, SCALES = "_blocks", "_scales"
"""What follows a parameter's name in the names of its parts."""
BLOCK = 32
_PROJECTION = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<which>gate|up|down)_proj\.(?P<part>weight|bias)")
_SINKS = ".self_attn.sinks.weight"


@dataclass(frozen=True)
class ExpertsEntry(TensorEntry):
    """A part of one parameter of all experts: `weight`, `bias`, `blocks` or `scales` of down, or of gate and up."""

    projections: tuple[TensorEntry, ...] = ()
    part: str = ""

    @property
    def sources(self) -> tuple[TensorEntry, ...]:
        """Each projection's tensor."""
        return self.projections

    @property
    def moved_by(self) -> float:
        """As of its projections."""
        return max(source.moved_by for source in self.projections)

    def rows(self, start: int, stop: int) -> TensorEntry:
        """Rows of several tensors do not follow each other."""
        raise ValueError(f"{self.name}: rows of experts that are stored together are not cut")

    def tensor(self, data: bytearray) -> "torch.Tensor":
        """Of the bytes of all projections, one after another."""
        import torch

        each, begin = [], 0
        for source in self.projections:
            each.append(self._part_of(source.tensor(data[begin : begin + source.n_bytes])))
            begin += source.n_bytes
        outputs = torch.stack(each, 2).flatten(1, 2)
        return outputs.transpose(1, 2) if self.part == "weight" else outputs

    def _part_of(self, stored: "torch.Tensor") -> "torch.Tensor":
        """[experts, outputs, …] of one projection's tensor."""
        import torch

        if self.part in ("weight", "bias"):
            return stored
        blocks = stored.reshape(*stored.shape[:-1], -1, 1 + BLOCK // 2)
        if self.part == "scales":
            return blocks[..., 0]
        codes = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), -1)
        return codes[..., 0::2] | codes[..., 1::2] << 4


def with_joined_experts(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of a GPT-OSS under the names of transformers' checkpoint; projections that lack another stay.

    Raises:
        UsageError: experts are stored in a type that is not decoded.
    """
    joined: dict[str, TensorEntry] = {}
    together: dict[tuple[str, str], dict[str, TensorEntry]] = defaultdict(dict)
    for name, entry in tensors.items():
        projection = _PROJECTION.fullmatch(name)
        if projection is None:
            joined[name.removesuffix(".weight") if name.endswith(_SINKS) else name] = entry
            continue
        parameter = "down_proj" if projection["which"] == "down" else "gate_up_proj"
        together[f"{projection['experts']}.{parameter}", projection["part"]][name] = entry
    for (parameter, part), found in together.items():
        needed = 1 if parameter.endswith("down_proj") else 2
        alike = {(entry.dtype, entry.shape) for entry in found.values()}
        if len(found) != needed or len(alike) != 1:
            joined |= found
            continue
        joined |= _parts(parameter, part, tuple(found[name] for name in sorted(found)))
    return joined


def _parts(parameter: str, part: str, projections: tuple[TensorEntry, ...]) -> dict[str, TensorEntry]:
    """The stored parts of a parameter, by name; gate comes before up."""
    first = projections[0]
    experts, outputs = first.shape[0], first.shape[1] * len(projections)
    shapes: dict[str, tuple[str, tuple[int, ...]]]
    if part == "bias":
        shapes = {"bias": ("_bias", (experts, outputs))}
    elif first.dtype in FLOATS:
        shapes = {"weight": ("", (experts, first.shape[2], outputs))}
    elif first.dtype == MXFP4:
        groups = first.shape[2] // BLOCK
        shapes = {
            "blocks": (BLOCKS, (experts, outputs, groups, BLOCK // 2)),
            "scales": (SCALES, (experts, outputs, groups)),
        }
    else:
        raise UsageError(
            "format-unsupported",
            f"{first.file}: {first.name} is stored as {first.dtype}; of GPT-OSS's experts {MXFP4}, "
            f"{', '.join(FLOATS)} are decoded.",
        )
    size = sum(entry.n_bytes for entry in projections)
    return {
        f"{parameter}{suffix}": ExpertsEntry(first.name, first.file, first.dtype, shape, 0, size, projections, kind)
        for kind, (suffix, shape) in shapes.items()
    }
