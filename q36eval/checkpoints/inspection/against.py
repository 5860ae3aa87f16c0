"""Which stored tensors two checkpoints share bit for bit, and which differ."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from q36eval.checkpoints.compare import difference
from q36eval.checkpoints.inspection.findings import AgainstReport
from q36eval.checkpoints.names import canonical, left_out_as, tensor_class
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint
from q36eval.errors import CorruptCheckpointError, UsageError


def compare_stored(checkpoint: Checkpoint, other: Path, workers: int) -> AgainstReport:
    """The comparison as stored, before any decoding.

    Raises:
        UsageError: the other checkpoint cannot be opened.
    """
    try:
        against = open_checkpoint(other)
    except CorruptCheckpointError as error:
        raise UsageError(f"The checkpoint to compare with cannot be read: {error}") from error
    names = sorted({*checkpoint.tensors, *against.tensors})
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        outcomes = list(pool.map(lambda name: difference(checkpoint, against, name), names))
    found = {name: how for name, how in zip(names, outcomes, strict=True) if how is not None}
    return AgainstReport(
        path=str(other),
        identical=dict(Counter(_class(name) for name in names if name not in found)),
        different=dict(Counter(_class(name) for name in found)),
        differences=found,
    )


def _class(stored: str) -> str:
    return left_out_as(stored) or tensor_class(canonical(stored))
