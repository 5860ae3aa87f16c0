"""Two checkpoints compared as stored, byte for byte: which tensors they share, which differ, and how."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from q36eval.checkpoints.inspection.findings import AgainstReport
from q36eval.checkpoints.names import canonical, left_out_as, tensor_class
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError


def difference(one: Checkpoint, other: Checkpoint, name: str) -> str | None:
    """How one stored tensor differs: `only here`, `only there`, or what differs; None when bit for bit the same."""
    if name not in one.tensors or name not in other.tensors:
        return "only there" if name in other.tensors else "only here"
    here, there = one.tensors[name], other.tensors[name]
    if (here.dtype, here.shape) != (there.dtype, there.shape):
        return f"{here.dtype} {list(here.shape)} against {there.dtype} {list(there.shape)}"
    import torch

    # flattened first, since a tensor without dimensions cannot be viewed as bytes
    mine, theirs = (tensor.reshape(-1).view(torch.uint8) for tensor in (one.read(name), other.read(name)))
    return None if torch.equal(mine, theirs) else "values differ"


def compare_stored(checkpoint: Checkpoint, other: Path, workers: int) -> AgainstReport:
    """The comparison as stored, before any decoding.

    Raises:
        UsageError: the other checkpoint cannot be opened.
    """
    try:
        against = open_checkpoint(other)
    except CorruptCheckpointError as error:
        raise UsageError(error.code, f"The checkpoint to compare with cannot be read: {error}") from error
    names = sorted({*checkpoint.tensors, *against.tensors})
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        outcomes = list(pool.map(lambda name: difference(checkpoint, against, name), names))
    differences = {name: how for name, how in zip(names, outcomes, strict=True) if how is not None}
    return AgainstReport(
        path=str(other),
        identical=dict(Counter(_class(name) for name in names if name not in differences)),
        different=dict(Counter(_class(name) for name in differences)),
        differences=differences,
    )


def _class(stored: str) -> str:
    return left_out_as(stored) or tensor_class(canonical(stored))
