"""What a weight is stored as, told from its parts alone, and what the configuration declares, in the same words."""

from q36eval.checkpoints.header import TensorEntry
from q36eval.checkpoints.inspection.units import Unit
from q36eval.checkpoints.schemes import Scheme

UNQUANTIZED = "unquantized"
BLOCK = 128


def stored_label(unit: Unit, shape: tuple[int, ...]) -> str:
    """Such as `BF16`, `NVFP4 g16`, `FP8 block 128x128`, `INT4 g32`; `shape` is that of the decoded weight."""
    entries = dict(unit.weight.parts)
    if unit.is_plain:
        return entries["weight"].dtype
    if len(shape) != 2:
        return unit.weight.scheme.format
    if "qweight" in entries:
        words, groups = entries["qweight"].shape[0], entries["scales"].shape[0]
        return f"INT{32 * words // shape[1]} {_along(shape[1], groups)}"
    values = entries.get("weight_packed") or entries["weight"]
    scale = entries.get("weight_scale") or entries.get("weight_scale_inv")
    where = _granularity(scale, shape)
    if values.dtype == "U8":
        return f"NVFP4 {where}"
    if values.dtype == "I32":
        return f"INT{32 * values.shape[1] // shape[1]} {where}"
    return f"{values.dtype.split('_')[0].replace('F8', 'FP8').replace('I8', 'INT8')} {where}"


def block_length(length: int, count: int) -> int:
    """How many values share one of `count` scales along an axis of `length` values."""
    if count > 1 and -(-length // BLOCK) == count:
        return BLOCK
    return -(-length // max(1, count))


def _along(columns: int, groups: int) -> str:
    return "channel" if groups == 1 else f"g{-(-columns // max(1, groups))}"


def _granularity(scale: TensorEntry | None, shape: tuple[int, ...]) -> str:
    if scale is None or len(scale.shape) != 2 or scale.shape == (1, 1):
        return "channel" if scale is not None and scale.shape == (shape[0],) else "tensor"
    if scale.shape[0] == shape[0]:
        return _along(shape[1], scale.shape[1])
    return f"block {block_length(shape[0], scale.shape[0])}x{block_length(shape[1], scale.shape[1])}"


def declared_label(scheme: Scheme, columns: int) -> str | None:
    """What the configuration says, in the words of `stored_label`; None where it does not say it in full."""
    if scheme.format == "plain":
        return UNQUANTIZED
    weights = getattr(scheme.compressed, "weights", None)
    if weights is None:
        return "NVFP4 g16" if scheme.format == "modelopt-nvfp4" else None
    kind = {("float", 4): "NVFP4", ("float", 8): "FP8"}.get((weights.type, weights.num_bits), f"INT{weights.num_bits}")
    strategy = str(getattr(weights.strategy, "value", weights.strategy))
    if strategy == "block":
        height, width = weights.block_structure
        return f"{kind} block {height}x{width}"
    if strategy in ("group", "tensor_group"):
        return f"{kind} g{weights.group_size}" if weights.group_size < columns else f"{kind} channel"
    return f"{kind} {strategy}"
