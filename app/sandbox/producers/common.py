"""What the producer scripts share. They run by hand in environments of their own, never inside q36eval."""

import json
import shutil
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
CALIBRATION_LENGTH = 512
CALIBRATION_SAMPLES = 256


def calibration_sequences(tokenizer: Any, calibration: Path) -> list[list[int]]:
    """Token ids of the first `CALIBRATION_SAMPLES` texts of a JSON Lines file with a `text` field, cut to length."""
    with calibration.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines if line.strip()]
    sequences = [tokenizer(text)["input_ids"][:CALIBRATION_LENGTH] for text in texts[:CALIBRATION_SAMPLES]]
    return [sequence for sequence in sequences if len(sequence) > 1]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Put the reference's tokenizer, template and generation settings back, byte for byte.

    Producers re-serialize them; a branch differs from its reference in weights, not in what text means.
    """
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Indented JSON with a final newline, keys in the order given."""
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
