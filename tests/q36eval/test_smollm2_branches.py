"""A real model's branches by real producers: decoded as the producer does, inspected, scored, attributed, damaged.

Figures are of "SmolLM2 decoded from Q4_1, rescaled", on 929 tokens of English. AutoRound rounds to nearest there.
Damage of a good branch is named by its inspection, or the divergence rises clearly.
"""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from q36eval.checkpoints import load_model
from q36eval.checkpoints.inspection import Section, inspect_checkpoint
from q36eval.engines import EngineSettings, open_engine
from q36eval.engines.logits import OutputHead
from q36eval.kl.attribution import Pass, Sample, divergences, hidden_states, sample
from q36eval.kl.corpus import CorpusDocument
from tests import smollm2
from tests.assets.smollm2_decoded import TEXTS, sha256
from tests.q36eval.checkpoints.inspection.damage import Damage, Tensors, config, edit, every, exchanged, in_config, one
from tests.smollm2_branches import PRODUCERS, branch
from tests.stored_formats import formats_of

pytestmark = pytest.mark.long
DOCUMENTS = tuple(CorpusDocument(str(number), "english", text) for number, text in enumerate(TEXTS["evaluation"]))


@dataclass(frozen=True)
class Scored:
    """The reference's head, and its hidden states of the texts."""

    head: OutputHead
    texts: Sample
    states: Pass


@cache
def reference() -> Scored:
    """The reference, scored once in a process."""
    engine = open_engine(smollm2.folder())
    texts = sample(DOCUMENTS, engine.tokenizer, passes=1, budget=10_000)
    return Scored(engine.output_head(), texts, hidden_states(engine, texts.requests))


def kl(folder: Path, **options: Any) -> float:
    """Mean KL(reference || branch) in nats per token; `options` are of `EngineSettings`."""
    scored = reference()
    sums = divergences(open_engine(EngineSettings(folder, **options)), scored.texts, scored.states, scored.head)
    return sum(sums) / sum(scored.texts.units)


WEIGHTS_ALONE: dict[str, Any] = {"emulate_activations": False, "kv_cache_dtype": "auto"}
"""Options with which neither inputs nor the KV cache are quantized."""


@dataclass(frozen=True)
class Expected:
    """Nats per token of the weights alone, and with inputs and KV cache quantized where the branch does so."""

    weights: float
    emulated: float | None = None


EXPECTED = {
    "w8a8": Expected(0.0058, 0.0502),
    "fp8-dynamic": Expected(0.0188, 0.0314),
    "fp8-static-kv": Expected(0.0194, 0.0505),
    "nvfp4": Expected(0.285, 0.530),
    "w4a16-gptq": Expected(0.518),
    "autoround-4-gptq": Expected(0.453),
    "autoround-4-awq": Expected(0.460),
    "w4a16": Expected(0.551),
    "autoround-3": Expected(1.542),
    "autoround-2": Expected(9.09),
}
"""As measured on a CPU without BF16 instructions."""
TOLERANCE: dict[str, float] = {"rel": 0.1, "abs": 1.5e-3}
"""Other products of BF16 change the divergence of one and the same model by about 1e-3."""


def test_every_branch_of_a_producer_is_expected() -> None:
    assert EXPECTED.keys() == PRODUCERS.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_weights_equal_the_producers_own_decoding(name: str) -> None:
    made = branch(name)
    loaded = load_model(made.folder)
    parameters = dict(loaded.model.named_parameters())
    assert len(made.decoded) == 210
    assert {key for key, decoded in made.decoded.items() if sha256(parameters[key]) != decoded} == set()
    formats = formats_of(made.folder)
    assert sum(count for name, counts in formats.items() for kind, count in counts.items() if kind != "plain") == 210


@pytest.mark.parametrize("name", EXPECTED)
def test_an_inspection_against_the_reference_blocks_nothing(name: str) -> None:
    inspection = inspect_checkpoint(branch(name).folder, smollm2.folder(), weights_workers=1)
    assert inspection.blocking == ()
    assert inspection.unbounded_weights == 0
    assert set(inspection.measured) == set(Section)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_divergence_is_the_one_that_was_measured(name: str) -> None:
    expected = EXPECTED[name]
    assert kl(branch(name).folder, **WEIGHTS_ALONE) == pytest.approx(expected.weights, **TOLERANCE)
    if expected.emulated is not None:
        assert kl(branch(name).folder) == pytest.approx(expected.emulated, **TOLERANCE)


def test_attribution_blames_what_is_quantized() -> None:
    from q36eval.app.cli.progress import ConsoleProgress
    from q36eval.run.attribution import Plan, attribute

    plan = Plan(branch("w4a16").folder, smollm2.folder(), DOCUMENTS, budget=12_000, bands=1)
    with ConsoleProgress() as progress:
        attributed = attribute(plan, progress)
    assert attributed.kl == pytest.approx(EXPECTED["w4a16"].weights, **TOLERANCE)
    assert {"embeddings", "norms"} <= {*attributed.identical}
    restored = {blame.suspect: blame for blame in attributed.blames if blame.direction == "restored"}
    assert restored["dense MLP"].nats > restored["self-attention"].nats > 0
    alone = {blame.suspect: blame.nats for blame in attributed.blames if blame.direction == "alone"}
    assert max(alone.values()) == pytest.approx(attributed.kl, rel=1e-6)


# -- damage of a good branch

EMBEDDINGS = "model.embed_tokens.weight"


def layer(number: int) -> str:
    return f"model.layers.{number}."


DOWN, QUERIES = f"{layer(10)}mlp.down_proj", f"{layer(10)}self_attn.q_proj"
BOUND = "beyond-scheme"
CLEARLY = 1.5
"""A divergence that has risen by this factor has other causes than rounding."""


def scaled(module: str, factor: float, rows: slice = slice(None)) -> Damage:
    def change(tensors: Tensors) -> None:
        tensors[f"{module}.weight_scale"][rows] *= factor

    return edit(change)


def rows_in_the_order_of_llama_cpp(tensors: Tensors) -> None:
    """Each head's rows as llama.cpp stores them, not put back."""
    for part in ("weight", "weight_scale"):
        rows = tensors[f"{QUERIES}.{part}"]
        as_bytes = rows.view(torch.uint8) if part == "weight" else rows
        heads = as_bytes.reshape(9, 2, 32, -1).transpose(1, 2).reshape(rows.shape[0], -1)
        tensors[f"{QUERIES}.{part}"] = heads.contiguous().view(rows.dtype)


def shard_of_an_earlier_version(tensors: Tensors) -> None:
    """A shard that begins within a layer, quantized from the model before it was rescaled."""
    earlier = load_file(smollm2.folder(rescaled=False) / "model.safetensors")
    for name in [name for name in earlier if name.startswith(f"{layer(20)}mlp.")]:
        weight = earlier[name].float()
        scale = weight.abs().amax(1, keepdim=True) / 448
        tensors[name] = (weight / scale).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale.to(tensors[f"{name}_scale"].dtype)


def zero_weights(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        if name.startswith(f"{layer(10)}mlp.") and name.endswith(".weight"):
            tensor.view(torch.uint8).zero_()


IGNORED_SCALES = in_config(lambda document: document["quantization_config"].pop("kv_cache_scheme"))
"""The scales of the KV cache stay in the file, and config.json declares none."""
NO_ROTARY_BASE = in_config(lambda document: document.pop("rope_parameters"))
ANOTHER_HEAD = edit(lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDINGS] * 1.01}))


def tenth(scale: torch.Tensor) -> torch.Tensor:
    """Values above a tenth of the largest one are cut."""
    return scale / 10


@dataclass(frozen=True)
class Case:
    """A change of a branch, and the rule that finds it; None where only the divergence shows it."""

    what: str
    damage: Damage
    rule: str | None
    branch: str = "fp8-dynamic"


CASES = [
    Case("layers 3 and 4 exchanged", exchanged("model.layers.3", "model.layers.4"), BOUND),
    Case("gate and up exchanged", exchanged(f"{layer(5)}mlp.gate_proj", f"{layer(5)}mlp.up_proj"), BOUND),
    Case("scales one row further", one(f"{DOWN}.weight_scale", lambda scales: scales.roll(1, 0)), BOUND),
    Case("scales halved", scaled(DOWN, 0.5), BOUND),
    Case("scales of a module 5 % off", scaled(QUERIES, 1.05), BOUND),
    Case("one scale 5 % off", scaled(QUERIES, 1.05, slice(7, 8)), BOUND),
    Case("a norm's weight lost", one(f"{layer(0)}input_layernorm.weight", torch.ones_like), "unquantized-differs"),
    Case("a layer's weights zero", edit(zero_weights), BOUND),
    Case("rows of queries as llama.cpp orders them", edit(rows_in_the_order_of_llama_cpp), BOUND),
    Case("a shard of an earlier version", edit(shard_of_an_earlier_version), BOUND),
    Case("token ids off by one", one(EMBEDDINGS, lambda weight: weight.roll(1, 0)), "unquantized-differs"),
    Case("another head than the one that is tied", ANOTHER_HEAD, "tied-head"),
    Case("head not tied", config(tie_word_embeddings=False), "missing-tensor"),
    Case("base of rotary positions lost", NO_ROTARY_BASE, "computation-differs"),
    Case("another epsilon", config(rms_norm_eps=1e-6), "computation-differs"),
    Case("a layer less", config(num_hidden_layers=29), "unexpected-tensor"),
    Case("scales of the KV cache ignored", IGNORED_SCALES, "kv-scales-undeclared", "fp8-static-kv"),
    Case("scales of all inputs a tenth", every(".input_scale", change=tenth), None, "fp8-static-kv"),
    Case("scales of the KV cache a tenth", every(".k_scale", ".v_scale", change=tenth), None, "fp8-static-kv"),
]


@cache
def undamaged(name: str) -> float:
    return kl(branch(name).folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_damage_is_found(case: Case, tmp_path: Path) -> None:
    """By the rule of an inspection, or by the divergence alone."""
    folder = tmp_path / "branch"
    shutil.copytree(branch(case.branch).folder, folder)
    case.damage(folder)
    inspection = inspect_checkpoint(folder, smollm2.folder(), weights_workers=1)
    rules = sorted({finding.rule for finding in inspection.findings})
    if case.rule is not None:
        assert case.rule in rules
        return
    assert rules == []
    assert kl(folder) > CLEARLY * undamaged(case.branch)
