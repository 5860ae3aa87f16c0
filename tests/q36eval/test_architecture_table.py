"""What each architecture supports, as a table that is measured here and printed."""

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
from tests.q36eval.checkpoints.architectures import NAMES, saved
from tests.q36eval.checkpoints.fp8 import quantize

TABLE = """
architecture      logits            shared prefixes  layer by layer  FP8 KV cache  quantized inputs
cohere2           tied, scale 0.25  no               yes             yes           yes
deepseek_v2       plain             yes              yes             refused       yes
deepseek_v3       plain             yes              yes             refused       yes
ernie4_5          tied              yes              yes             yes           yes
ernie4_5_moe      tied              yes              yes             yes           yes
exaone4           plain             no               yes             yes           yes
gemma2            tied, softcap 30  no               yes             yes           yes
gemma3_text       tied              no               yes             yes           yes
glm4              plain             yes              yes             yes           yes
glm4_moe          plain             yes              yes             yes           yes
gpt2              tied              yes              refused         yes           none
gpt_neox          plain             yes              yes             refused       yes
gpt_oss           plain             no               yes             yes           yes
granite           divisor 4         yes              refused         yes           yes
granitemoe        divisor 4         yes              yes             yes           yes
granitemoehybrid  divisor 1         yes              yes             yes           yes
hunyuan_v1_dense  plain             yes              yes             yes           yes
lfm2              tied              yes              yes             yes           yes
llama             plain             yes              yes             yes           yes
llama-bias        plain             yes              yes             yes           yes
llama-tied        tied              yes              yes             yes           yes
llama4_text       plain             no               yes             yes           refused
minimax_m2        plain             yes              yes             yes           yes
ministral3        plain             yes              yes             yes           yes
mistral           plain             no               yes             yes           yes
mixtral           plain             yes              yes             yes           yes
nemotron          plain             yes              yes             yes           yes
olmo2             plain             yes              yes             yes           yes
olmoe             plain             yes              yes             yes           yes
phi               bias              yes              yes             yes           yes
phi3              plain             yes              yes             yes           yes
phimoe            plain             yes              yes             yes           refused
qwen2             plain             yes              yes             yes           yes
qwen3             plain             yes              yes             yes           yes
qwen3_5_moe_text  plain             yes              yes             yes           yes
qwen3_5_text      plain             yes              yes             yes           yes
qwen3_moe         plain             yes              yes             yes           yes
qwen3_next        plain             yes              yes             yes           yes
seed_oss          plain             yes              yes             yes           yes
smollm3           tied              yes              yes             yes           yes
stablelm          plain             yes              yes             yes           yes
starcoder2        tied              yes              yes             yes           yes
"""


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
