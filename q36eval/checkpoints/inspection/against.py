"""Which stored tensors two checkpoints share bit for bit, and which differ."""

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from q36eval.checkpoints.compare import difference, pair_difference
from q36eval.checkpoints.inspection.findings import AgainstReport, LeftOutRow
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


def compare_left_out(checkpoint: Checkpoint, reference: Checkpoint, workers: int) -> tuple[LeftOutRow, ...]:
    """Vision tower, multi-token head and KV-cache scales against the reference's, for those that both have.

    They are paired by name, whichever of the published layouts each checkpoint follows.
    """
    mine, theirs = _left_out(checkpoint), _left_out(reference)
    rows = []
    with ThreadPoolExecutor(max_workers=max(1, workers)) as pool:
        for reason in sorted(mine.keys() & theirs.keys()):
            here, there = mine[reason], theirs[reason]
            pairs = [(name, there[key]) for key, name in here.items() if key in there]
            outcomes = list(pool.map(lambda pair: pair_difference(checkpoint, pair[0], reference, pair[1]), pairs))
            differing = tuple(name for (name, _), how in zip(pairs, outcomes, strict=True) if how is not None)
            rows.append(
                LeftOutRow(
                    reason=reason,
                    identical=len(pairs) - len(differing),
                    different=differing,
                    only_here=len(here) - len(pairs),
                    only_there=len(there) - len(pairs),
                )
            )
    return tuple(rows)


def _left_out(checkpoint: Checkpoint) -> dict[str, dict[str, str]]:
    """Reason -> name without the layout's prefix -> stored name."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for stored in checkpoint.tensors:
        reason = left_out_as(stored)
        if reason is not None:
            found[reason][canonical(stored).removeprefix("model.")] = stored
    return found


def _class(stored: str) -> str:
    return left_out_as(stored) or tensor_class(canonical(stored))
