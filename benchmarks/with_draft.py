"""A checkpoint of `benchmarks.rehearsal` with a draft head of its own: `python -m benchmarks.with_draft BRANCH FOLDER`.

The head (MTP, one layer) is random, in the formats of the branch's recipe; everything else is linked to. What it
guesses is as good as chance, so it is for what drafting costs and whether it runs, not for how often it is right.
"""

import argparse
import json
import os
from pathlib import Path

from benchmarks.full_shape import Content, stored
from benchmarks.rehearsal.checkpoints import INDEX

DRAFT_FILE = "model_mtp.safetensors"


def write_with_draft(branch: Path, folder: Path) -> None:
    """The branch's files by links, the head's in a file of its own, index and configuration that name it."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    from q36eval.checkpoints import open_checkpoint
    from q36eval.checkpoints.draft import DraftHead, draft_config

    folder.mkdir(parents=True, exist_ok=True)
    for file in branch.iterdir():
        if file.is_file() and file.name not in (INDEX, "config.json"):
            (folder / file.name).unlink(missing_ok=True)
            os.symlink(file.resolve(), folder / file.name)
    with torch.device("meta"):
        head = nn.ModuleDict({"mtp": DraftHead(draft_config(open_checkpoint(branch)))})
    content, tensors = Content(seed=1), {}
    for name, parameter in head.named_parameters():
        tensors |= stored(content, name, tuple(parameter.shape))
    save_file(tensors, folder / DRAFT_FILE, {"format": "pt"})
    config = json.loads((branch / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 1}))
    index = json.loads((branch / INDEX).read_text())
    index["weight_map"] |= dict.fromkeys(tensors, DRAFT_FILE)
    (folder / INDEX).write_text(json.dumps(index))


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("branch", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    write_with_draft(asked.branch, asked.folder)


if __name__ == "__main__":
    main()
