"""Draw the producers' calibration texts from the training side.

`python -m benchmarks.sandbox.calibration OUT`.

JSON Lines with a `text` field, seeded, mixed by the training shares. Test draws never appear in it.
"""

import json
import random
import sys
from pathlib import Path

from benchmarks.sandbox.mixture import TOKEN_SHARES, Renderer, document
from benchmarks.sandbox.quantize import CALIBRATION_SAMPLES

SEED = 20260


def write_calibration(target: Path) -> None:
    """Write `CALIBRATION_SAMPLES` documents."""
    rng, renderer = random.Random(SEED), Renderer()
    kinds = rng.choices(list(TOKEN_SHARES), weights=list(TOKEN_SHARES.values()), k=CALIBRATION_SAMPLES)
    with target.open("w", encoding="utf-8") as stream:
        for kind in kinds:
            drawn = document(kind, rng, "train", renderer)
            stream.write(json.dumps({"text": drawn.prompt + drawn.answer}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write_calibration(Path(sys.argv[1]))
