"""What is lost with length is seen where it is lost: by how much stands to the left, as what it is, never clipped."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from q36eval.app.figures.kl import KLFigures
from q36eval.engines import EngineSettings, open_engine
from q36eval.engines.base import Engine
from q36eval.kl.corpus import CorpusDocument
from q36eval.kl.probe import KLProbe
from q36eval.probes import Digest, ItemResults
from q36eval.records import Measurement

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
QUIET, LOUD = 61, 462
"""Tokens of the sandbox that leave values of at most 0.083 and of 2.05 in the first layer's recurrent state."""
FIRST_LOUD, LENGTH, CHUNK = 256, 512, 64


class TwoTokens:
    is_fast = False

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [QUIET if letter == "q" else LOUD for letter in text]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return "".join("q" if number == QUIET else "l" for number in ids)


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values of the first layer 2**16 times as large, which its norm takes back: loud ones are 134,000, beyond FP16."""
    folder = Path(shutil.copytree(SANDBOX, tmp_path_factory.mktemp("states") / "enlarged"))
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.linear_attn.in_proj_qkv.weight"
    tensors[name][-tensors["model.layers.0.linear_attn.out_proj.weight"].shape[1] :] *= 2.0**16
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def measured(reference: Engine, branch: Engine, tokenizer: Any, documents: list[CorpusDocument]) -> list[Measurement]:
    probe = KLProbe(documents, context=4096, overlap=512)
    outcomes = []
    for item in probe.plan(tokenizer):
        mine, theirs = (
            ItemResults({scored.request.key: scored for scored in engine.score(item.scores)})
            for engine in (branch, reference)
        )
        digest = probe.digest(reference, item, theirs)
        whole = Digest(values=digest.values, tensors={**digest.tensors, "head": reference.head_weight()})
        outcomes += probe.compare(branch, item, mine, whole)
    return list(probe.summarize(outcomes))


@pytest.mark.long
def test_a_state_that_overflows_is_told_by_position(enlarged: Path) -> None:
    document = CorpusDocument("long", "long", "q" * FIRST_LOUD + "l" * (LENGTH - FIRST_LOUD))
    reference = open_engine(enlarged)
    for dtype, finite in (("bfloat16", True), ("float16", False)):
        branch = open_engine(EngineSettings(enlarged, recurrent_state_dtype=dtype))
        found = {m.key: m for m in measured(reference, branch, TwoTokens(), [document])}
        census = {name: found[f"kl.non_finite_tokens[position={name}]"] for name in ("128-255", "256-511")}
        figures = KLFigures(list(found.values()))
        if finite:
            assert [m.value for m in census.values()] == [0, 0]
            assert "0 of 511 tokens." in figures.non_finite()
            continue
        # the chunk that turns loud ends with a state that FP16 does not hold; the next one reads it, and its first
        # answer is about the token with 321 to its left
        first = FIRST_LOUD + CHUNK + 1
        assert census["128-255"].value == 0
        assert census["256-511"].value == LENGTH - first
        assert census["256-511"].note == f"the first with {first} tokens to the left"
        assert math.isfinite(found["kl.kl_divergence[position=256-511]"].value)  # of those that have one
        assert found["kl.kl_divergence[position=256-511]"].counts.scored == first - 256
        assert math.isinf(found["kl.kl_p99[position=256-511]"].value)
        assert found["kl.non_finite_tokens[all]"].value == LENGTH - first
        assert figures.non_finite() == (
            f"Without a finite figure: {LENGTH - first} of 511 tokens, the first with {first} tokens to the left."
        )
        (row,) = [row for row in figures.rows("position") if row.name == "256-511"]
        assert row.tokens == f"{first - 256} + {LENGTH - first} not finite"


@pytest.mark.long
def test_a_group_without_any_finite_figure_is_shown(enlarged: Path) -> None:
    """Its mean is not there, and its place is not empty."""
    document = CorpusDocument("long", "long", "l" * LENGTH)
    branch = open_engine(EngineSettings(enlarged, recurrent_state_dtype="float16"))
    figures = KLFigures(measured(open_engine(enlarged), branch, TwoTokens(), [document]))
    assert figures.get("kl_divergence", "position=128-255") is None
    rows = {row.name: row for row in figures.rows("position")}
    assert (rows["128-255"].tokens, rows["128-255"].kl) == ("0 + 128 not finite", "–")
    assert rows["0-63"].tokens == "63"


@pytest.mark.long
def test_a_state_in_bf16_loses_more_the_longer_the_text() -> None:
    """Rounded after every chunk of 64: nothing before the first, after 512 tokens five times what it is before 128."""
    reference = open_engine(SANDBOX)
    texts = [f"{one}\n\n" for one in _texts()]
    documents = [CorpusDocument(str(n), "long", "".join(texts[n::4])[:2200]) for n in range(4)]
    branch = open_engine(EngineSettings(SANDBOX, recurrent_state_dtype="bfloat16"))
    found = {m.key: m.value for m in measured(reference, branch, reference.tokenizer, documents)}
    first, early, late = (found[f"kl.kl_divergence[position={name}]"] for name in ("0-63", "64-127", "512-1023"))
    assert first < 1e-9
    assert 0 < 5 * early < late


def _texts() -> list[str]:
    import json

    file = SANDBOX.parents[1] / "corpus" / "sandbox" / "mathematics.jsonl"
    return [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_probe_declares_what_it_counts_by_position() -> None:
    probe = KLProbe([CorpusDocument("a", "long", "q" * 200)], context=4096, overlap=512)
    probe.plan(TwoTokens())
    declared = {figure.key for figure in probe.declared()}
    assert {f"kl.non_finite_tokens[position={name}]" for name in ("0-63", "64-127", "128-255")} <= declared
