"""Every stored format is described, has golden files, and is quantized and named as its row of the table says."""

import json
from pathlib import Path

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.formats import FORMATS
from q36eval.checkpoints.formats.table import DESCRIBED
from q36eval.checkpoints.inspection import inspect_checkpoint
from q36eval.checkpoints.weights import index_weights

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "assets" / "golden"
NAMES = sorted(json.loads((GOLDEN / "MANIFEST.json").read_text()))
GGUF = ROOT / "tests" / "assets" / "ggufs" / "q8_0.gguf"


def test_every_format_is_described_and_has_golden_files_that_emulate_what_the_page_says() -> None:
    assert DESCRIBED.keys() == FORMATS.keys()
    emulated: dict[str, set[str]] = {}
    for place in (*(GOLDEN / name for name in NAMES), GGUF):
        for weight in index_weights(open_checkpoint(place), light=True).weights.values():
            inputs = weight.activations()
            emulated.setdefault(weight.scheme.format, set()).update({inputs.kind} if inputs else ())
    assert emulated.keys() == FORMATS.keys()
    as_they_are = {name for name, kinds in emulated.items() if not kinds}
    assert as_they_are == {"plain", "gptq", "awq", "gguf", "pack-quantized", "naive-quantized"}
    for name, kinds in emulated.items():
        assert all(kind.upper() in DESCRIBED[name].inputs for kind in kinds), name


def test_every_format_is_called_as_the_page_says() -> None:
    for name in NAMES:
        formats = {weight.scheme.format for weight in index_weights(open_checkpoint(GOLDEN / name)).weights.values()}
        described = " ".join(DESCRIBED[each].stored for each in formats)
        for row in inspect_checkpoint(GOLDEN / name).coverage:
            assert row.stored.split()[0] in described, (name, row.stored)
