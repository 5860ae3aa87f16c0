"""The weights of a checkpoint one by one, experts apart: what each is stored as, and declared as, in the same words."""

from collections.abc import Mapping
from math import prod

from q36eval.checkpoints.formats.compressed import plain_name
from q36eval.checkpoints.formats.parts import ceil_divide, without_ones
from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.findings import UNQUANTIZED
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import LogicalWeight

BLOCK = 128
OF_EXPERTS = "MXFP4 g32"
"""Of experts stored together, as GPT-OSS has them."""
ALL = 1 << 62
"""A height or width of a block that stands for all rows or columns."""
Shape = tuple[int, ...]
Block = tuple[int, int]


def stored_label(unit: LogicalWeight, shape: Shape) -> str:
    """Such as `BF16`, `NVFP4 g16`, `FP8 block 128x128`, `INT4 g32`; `shape` is that of the decoded weight."""
    entries = dict(unit.parts)
    if unit.is_plain or unit.scheme.format == "gguf":
        return entries["weight"].dtype
    if unit.scheme.format == "mxfp4":
        return OF_EXPERTS
    if len(shape) != 2 or 0 in shape or _malformed(entries):
        return unit.scheme.format
    return f"{_values(entries, shape)} {_words(_block(unit, entries, shape), shape)}"


def stored_kind(unit: LogicalWeight, shape: Shape) -> str | None:
    """What a quantized weight is stored as, as schemes are named: `NVFP4`, `FP8`, `FP8_BLOCK`, `INT4`; None where the
    parts do not say it."""
    entries = dict(unit.parts)
    if unit.scheme.format == "gguf":
        return entries["weight"].dtype
    if unit.scheme.format == "mxfp4":
        return "MXFP4"
    if len(shape) != 2 or 0 in shape or _malformed(entries) or not {*VALUES} & entries.keys():
        return None
    kind = _values(entries, shape)
    if kind == "FP8" and _scale(entries) is not None:
        # several rows, but not for that reason all, share a scale; one block may be larger than the weight
        block = _block(unit, entries, shape)
        return "FP8_BLOCK" if 1 < block[0] < ALL and (block == declared_block(unit.scheme) or block != shape) else "FP8"
    return kind if kind.startswith(("INT", "MXFP", "NVFP4")) or kind == "FP8" else None


VALUES = ("qweight", "weight_packed", "weight")
"""What the formats call the part that holds the values."""
_NAMES = {"F8_E4M3": "FP8", "F8_E5M2": "FP8 E5M2", "I8": "INT8", "U8": "NVFP4"}


def _values(entries: Mapping[str, TensorEntry], shape: Shape) -> str:
    """What the values are, by their dtype and that of their scale."""
    values, scale = entries[next(part for part in VALUES if part in entries)], _scale(entries)
    if "qweight" in entries:  # several of a column in each word, as GPTQ has them, or of a row, as AWQ has them
        across = values.shape[0] == shape[1]
        bits = 32 * values.shape[1] // shape[0] if across else 32 * values.shape[0] // shape[1]
        return f"INT{bits}"
    if scale is not None and scale.dtype == "U8":  # bare exponents
        return "MXFP4" if values.dtype == "U8" else "MXFP8"
    if values.dtype == "I32":
        return f"INT{32 * values.shape[1] // shape[1]}"
    return _NAMES.get(values.dtype, values.dtype)


def _scale(entries: Mapping[str, TensorEntry]) -> TensorEntry | None:
    return entries.get("weight_scale") or entries.get("weight_scale_inv")


def _block(unit: LogicalWeight, entries: Mapping[str, TensorEntry], shape: Shape) -> Block:
    """How many rows and columns share a scale, as the shape of the scales says it."""
    declared, scale = declared_block(unit.scheme), _scale(entries)
    if "qweight" in entries:
        grid = (shape[0], entries["scales"].shape[0])
    else:
        grid = (1, 1) if scale is None else grid_of(scale.shape, shape, declared)
    return block_of(grid, shape, declared)


def kind_of(unit: LogicalWeight, shape: Shape) -> str:
    """`unquantized`, or as schemes are named; the format's own name where the parts do not say it."""
    return UNQUANTIZED if unit.is_plain else stored_kind(unit, shape) or unit.scheme.format


def _malformed(entries: Mapping[str, TensorEntry]) -> bool:
    """Whether what holds the values has no rows and columns, so that nothing can be told of it."""
    tables = [entries[part] for part in ("weight", "weight_packed", "qweight", "scales") if part in entries]
    return any(len(entry.shape) != 2 or 0 in entry.shape for entry in tables)


def grid_of(scale: Shape, shape: Shape, declared: Block | None) -> Block:
    """Rows and columns of a grid of scales, whichever way its shape is written: `[out]`, `[1]`, `[a, 1, b, 1]`, or what
    is declared less its axes of size one."""
    if declared is not None:
        needed = ceil_divide(shape[0], declared[0]), ceil_divide(shape[1], declared[1])
        if without_ones(scale) == without_ones(needed):
            return needed
    if prod(scale) == 1:
        return 1, 1
    if len(scale) == 4 and scale[1] == scale[3] == 1:
        return scale[0], scale[2]
    if len(scale) == 2:
        return scale[0], scale[1]
    return prod(scale), 1


def block_of(grid: Block, shape: Shape, declared: Block | None) -> Block:
    """How many rows and columns share a scale: as declared, where the grid is what that gives."""
    if declared and grid == tuple(ceil_divide(size, block) for size, block in zip(shape, declared, strict=True)):
        return declared
    return _length(shape[0], grid[0]), _length(shape[1], grid[1])


def _length(length: int, count: int) -> int:
    if count > 1 and ceil_divide(length, BLOCK) == count:
        return BLOCK
    return ceil_divide(length, max(1, count))


def _words(block: Block, shape: Shape) -> str:
    """One scale for all is a `tensor`, however large the block is that it was declared for."""
    height, width = (min(size, most) for size, most in zip(block, shape, strict=True))
    if (height, width) == shape:
        return "tensor"
    if height > 1:
        return f"block {height}x{width}"
    return "channel" if width == shape[1] else f"g{width}"


def is_weight_only(unit: LogicalWeight) -> bool:
    """Whether Model Optimizer's algorithm for this weight leaves inputs as they are (`W4A16_NVFP4`)."""
    return unit.scheme.format == "modelopt-nvfp4" and unit.scheme.setting("inputs") is None


_GROUPS = {"mxfp4": 32, "modelopt-nvfp4": 16, "modelopt-mxfp4": 32, "modelopt-mxfp8": 32}
"""Values under one scale, where the format says it."""


def declared_block(scheme: Scheme) -> Block | None:
    """How many rows and columns share a scale, as the configuration says; None where it does not."""
    if scheme.format in ("fp8", "modelopt-fp8"):
        block: Block | None = scheme.setting("block")
        return block or (1 if scheme.setting("per_channel") else ALL, ALL)
    if scheme.format in _GROUPS:
        return 1, _GROUPS[scheme.format]
    if scheme.format in ("gptq", "awq"):
        size = scheme.setting("group_size")
        return 1, size if size and size > 0 else ALL
    weights = getattr(scheme.compressed, "weights", None)
    if weights is None:
        return None
    strategy = plain_name(weights.strategy)
    if strategy == "block":
        return weights.block_structure[0], weights.block_structure[1]
    if strategy in ("group", "tensor_group"):
        return 1, weights.group_size
    return (1 if strategy == "channel" else ALL), ALL


def declared_bits(scheme: Scheme) -> int | None:
    """How many bits an integer has, as the configuration says; None where it does not."""
    bits = scheme.setting("bits") or getattr(getattr(scheme.compressed, "weights", None), "num_bits", None)
    return bits if isinstance(bits, int) else None


def declared_label(scheme: Scheme, shape: Shape) -> str | None:
    """What the configuration says, in the words of `stored_label`; None where it does not say it in full."""
    if scheme.format == "plain":
        return UNQUANTIZED
    if scheme.format == "gguf":
        return str(scheme.setting("type"))
    if scheme.format == "mxfp4":
        return OF_EXPERTS
    block = declared_block(scheme)
    if block is None or len(shape) != 2:
        return None
    return f"{_kind(scheme)} {_words(block, shape)}"


def _kind(scheme: Scheme) -> str:
    if scheme.format in ("gptq", "awq"):
        return f"INT{scheme.setting('bits')}"
    if scheme.format == "fp8":
        return "FP8"
    if scheme.compressed is None:
        return scheme.format.partition("-")[2].upper()
    if scheme.format.startswith("mxfp"):
        return scheme.format[:5].upper()
    weights = scheme.compressed.weights
    kind = (plain_name(weights.type), weights.num_bits)
    return {("float", 4): "NVFP4", ("float", 8): "FP8"}.get(kind, f"INT{weights.num_bits}")
