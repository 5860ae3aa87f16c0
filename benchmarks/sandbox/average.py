"""Weighted average of checkpoints of one training: `python -m benchmarks.sandbox.average OUT FOLDER=WEIGHT ...`.

Later stages gain skills and lose a little of others; an average between two stages keeps most of both.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main() -> None:
    """Average in float32, written in each tensor's own type beside the last folder's other files."""
    out, parts = Path(sys.argv[1]), [argument.rsplit("=", 1) for argument in sys.argv[2:]]
    stored = [(load_file(Path(folder) / "model.safetensors"), float(weight)) for folder, weight in parts]
    total = sum(weight for _, weight in stored)
    averaged = {
        name: torch.stack([tensors[name].float() * (weight / total) for tensors, weight in stored])
        .sum(0)
        .to(like.dtype)
        for name, like in stored[0][0].items()
    }
    shutil.copytree(parts[-1][0], out, dirs_exist_ok=True)
    save_file(averaged, out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
