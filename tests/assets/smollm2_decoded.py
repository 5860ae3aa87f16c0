"""What the producers of SmolLM2's branches share: texts to calibrate on, and a record of decoded weights."""

import hashlib
import json
from pathlib import Path

import torch

TEXTS = json.loads(Path(__file__).with_name("english.json").read_text(encoding="utf-8"))
CALIBRATION: list[str] = TEXTS["calibration"]
DECODED = "decoded.json"
"""Next to a branch's folder: by weight, the SHA-256 of its values in BF16."""


def sha256(weight: torch.Tensor) -> str:
    """The SHA-256 of a weight's values in BF16, row by row; both zeros count as one, since sums lose the sign."""
    values = weight.bfloat16() + 0.0
    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy()).hexdigest()


def write_decoded(target: Path, decoded: dict[str, torch.Tensor]) -> None:
    """Write what the producer's own code decodes its weights to."""
    if not decoded:
        raise SystemExit("The producer wrote no quantized tensor.")
    hashes = {name: sha256(weight) for name, weight in decoded.items()}
    target.with_name(DECODED).write_text(json.dumps(hashes, indent=1) + "\n", encoding="utf-8")
