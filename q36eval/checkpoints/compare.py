"""Two checkpoints compared as stored, byte for byte: which tensors differ, and how."""

from pathlib import Path

from q36eval.checkpoints.reader import Checkpoint, open_checkpoint


def stored_differences(one: Path, other: Path) -> dict[str, str]:
    """Stored tensors in which two checkpoints differ: name -> `only here`, `only there`, or what differs.

    Raises:
        UsageError: one of them is no checkpoint folder.
        CorruptCheckpointError: one of them is damaged.
    """
    mine, theirs = open_checkpoint(one), open_checkpoint(other)
    found = {name: difference(mine, theirs, name) for name in {*mine.tensors, *theirs.tensors}}
    return {name: how for name, how in sorted(found.items()) if how is not None}


def difference(one: Checkpoint, other: Checkpoint, name: str) -> str | None:
    """How one stored tensor differs: `only here`, `only there`, or what differs; None when bit for bit the same."""
    here, there = one.tensors.get(name), other.tensors.get(name)
    if here is None or there is None:
        return "only there" if here is None else "only here"
    if (here.dtype, here.shape) != (there.dtype, there.shape):
        return f"{here.dtype} {list(here.shape)} against {there.dtype} {list(there.shape)}"
    return None if _same_bytes(one, other, name) else "values differ"


def _same_bytes(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    import torch

    # flattened first, since a tensor without dimensions cannot be viewed as bytes
    mine, theirs = (checkpoint.read(name).reshape(-1).view(torch.uint8) for checkpoint in (one, other))
    return torch.equal(mine, theirs)
