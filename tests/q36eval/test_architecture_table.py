"""What each architecture supports, as the table next to this file, which is measured here and printed."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from q36eval.checkpoints.kv_cache import install
from q36eval.checkpoints.loader import load_model
from q36eval.engines.abilities import tried
from q36eval.engines.layer_pass import check_layers_alone
from q36eval.engines.logits import LogitsForm
from q36eval.errors import UsageError
from tests.q36eval.checkpoints.architectures import NAMES, quantize, saved

TABLE = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")


def _worked(call: Any) -> str:
    try:
        call()
    except UsageError:
        return "refused"
    return "yes"


def _row(name: str, folder: Path) -> list[str]:
    plain = saved(name, folder / "plain")
    model = load_model(plain).model
    form = LogitsForm.of(model.config)
    bias = "bias" if model.get_output_embeddings().bias is not None else ""
    tied = "tied" if model.config.tie_word_embeddings else ""
    abilities = tried(model)
    layers = _worked(lambda: check_layers_alone(model))
    kv_cache = _worked(lambda: (install(model, "fp8_e4m3", {}), tried(model)))
    quantized = saved(name, folder / "fp8")
    weights = quantize(quantized, inputs=True)
    inputs = _worked(lambda: load_model(quantized))
    named = [f"{part} {value:g}" for part, value in asdict(form).items() if value is not None]
    logits = ", ".join([*filter(None, [tied, bias]), *named]) or "plain"
    shares = "no" if "shared prefixes" in abilities.missing else "yes"
    return [name, logits, shares, layers, kv_cache, inputs if weights else "none"]


@pytest.mark.long
def test_the_table_of_architectures(tmp_path: Path) -> None:
    rows = [["architecture", "logits", "shared prefixes", "layer by layer", "FP8 KV cache", "quantized inputs"]]
    rows += [_row(name, tmp_path / name) for name in NAMES]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    print("\n" + "\n".join(lines))
    assert "\n".join(lines) == TABLE.strip()
