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
    if name not in one.tensors or name not in other.tensors:
        return "only there" if name in other.tensors else "only here"
    return pair_difference(one, name, other, name)


def pair_difference(one: Checkpoint, name: str, other: Checkpoint, its_name: str) -> str | None:
    """How a stored tensor of each differs; None when bit for bit the same, whatever they are called."""
    here, there = one.tensors[name], other.tensors[its_name]
    if (here.dtype, here.shape) != (there.dtype, there.shape):
        return f"{here.dtype} {list(here.shape)} against {there.dtype} {list(there.shape)}"
    import torch

    # flattened first, since a tensor without dimensions cannot be viewed as bytes
    mine, theirs = (tensor.reshape(-1).view(torch.uint8) for tensor in (one.read(name), other.read(its_name)))
    return None if torch.equal(mine, theirs) else "values differ"
