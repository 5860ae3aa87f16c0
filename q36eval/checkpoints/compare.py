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
    found = {name: "only here" for name in mine.tensors.keys() - theirs.tensors.keys()}
    found |= {name: "only there" for name in theirs.tensors.keys() - mine.tensors.keys()}
    for name in mine.tensors.keys() & theirs.tensors.keys():
        here, there = mine.tensors[name], theirs.tensors[name]
        if (here.dtype, here.shape) != (there.dtype, there.shape):
            found[name] = f"{here.dtype} {list(here.shape)} against {there.dtype} {list(there.shape)}"
        elif not _same_bytes(mine, theirs, name):
            found[name] = "values differ"
    return dict(sorted(found.items()))


def _same_bytes(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    import torch

    # flattened first, since a tensor without dimensions cannot be viewed as bytes
    mine, theirs = (checkpoint.read(name).reshape(-1).view(torch.uint8) for checkpoint in (one, other))
    return torch.equal(mine, theirs)
