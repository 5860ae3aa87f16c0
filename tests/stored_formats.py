"""What a checkpoint's weights are stored as, and what of it is no part of the text model."""

from collections import Counter, defaultdict
from pathlib import Path

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.loader import input_schemes
from q36eval.checkpoints.weights import index_weights


def formats_of(folder: Path) -> dict[str, Counter[str]]:
    """How many weights of each class of tensor are stored in which format."""
    formats: dict[str, Counter[str]] = defaultdict(Counter)
    for weight in index_weights(open_checkpoint(folder)).weights.values():
        formats[weight.tensor_class][weight.scheme.format] += 1
    return dict(formats)


def quantized_inputs(folder: Path) -> int:
    """How many modules have inputs whose quantization is emulated."""
    return len(input_schemes(index_weights(open_checkpoint(folder))))


def left_out(folder: Path) -> dict[str, tuple[str, ...]]:
    """The stored tensors that are no part of the text model, by reason."""
    return index_weights(open_checkpoint(folder)).left_out
