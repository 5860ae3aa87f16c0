"""What is lost with length is seen where it is lost: by how much stands to the left, as what it is, never clipped.

Damage that no file can show is measured: `UNSEEN` of the inspection tests says which.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.figures.kl import KLFigures
from q36eval.engines import EngineSettings, open_engine
from q36eval.kl.attribution import divergences, hidden_states, sample
from q36eval.kl.corpus import CorpusDocument, load_corpus, read_json_lines
from q36eval.kl.probe import KLProbe
from tests.app.sandbox_gates import copied
from tests.branches import folder_of
from tests.kl.comparing import CORPUS, SANDBOX, Letters, compared
from tests.q36eval.checkpoints.inspection.damage import clipping_cache, edit, inputs_twenty_times

QUIET, LOUD = chr(61), chr(462)
"""Tokens of the sandbox that leave values of at most 0.083 and of 2.05 in the first layer's recurrent state."""
FIRST_LOUD, LENGTH, CHUNK = 256, 512, 64


@pytest.fixture(scope="module")
def enlarged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values of the first layer 2**16 times as large, which its norm takes back: loud ones are 134,000, beyond FP16."""

    def enlarge(tensors: dict[str, Any]) -> None:
        name = "model.layers.0.linear_attn.in_proj_qkv.weight"
        tensors[name][-tensors["model.layers.0.linear_attn.out_proj.weight"].shape[1] :] *= 2.0**16

    return copied(SANDBOX, tmp_path_factory.mktemp("states") / "enlarged", edit(enlarge))


@pytest.mark.long
def test_a_state_that_overflows_is_told_by_position(enlarged: Path) -> None:
    document = CorpusDocument("long", "long", QUIET * FIRST_LOUD + LOUD * (LENGTH - FIRST_LOUD))
    reference = open_engine(enlarged)
    for dtype, finite in (("bfloat16", True), ("float16", False)):
        branch = open_engine(EngineSettings(enlarged, recurrent_state_dtype=dtype))
        found = compared(KLProbe([document]), branch, reference, Letters())
        census = {name: found[f"non_finite_tokens[position={name}]"] for name in ("128-255", "256-511")}
        figures = KLFigures(list(found.values()))
        if finite:
            assert [m.value for m in census.values()] == [0, 0]
            continue
        # the chunk that turns loud ends with a state that FP16 does not hold; the next one reads it, and its first
        # answer is about the token with 321 to its left
        first = FIRST_LOUD + CHUNK + 1
        assert census["128-255"].value == 0
        assert census["256-511"].value == LENGTH - first
        assert census["256-511"].note == f"the first with {first} tokens to the left"
        assert math.isfinite(found["kl_divergence[position=256-511]"].value)  # of those that have one
        assert found["kl_divergence[position=256-511]"].counts.scored == first - 256
        assert math.isinf(found["kl_p99[position=256-511]"].value)
        assert found["non_finite_tokens[all]"].value == LENGTH - first
        assert f"{LENGTH - first} of 511 tokens" in figures.non_finite()
        (row,) = [row for row in figures.rows("position") if "256-511" in row.values()]
        assert row["tokens"] == f"{first - 256} + {LENGTH - first} not finite"


@pytest.mark.long
def test_a_group_without_any_finite_figure_is_shown(enlarged: Path) -> None:
    """Its mean is not there, and its place is not empty."""
    document = CorpusDocument("long", "long", LOUD * LENGTH)
    branch = open_engine(EngineSettings(enlarged, recurrent_state_dtype="float16"))
    figures = KLFigures(list(compared(KLProbe([document]), branch, open_engine(enlarged), Letters()).values()))
    assert figures.get("kl_divergence", "position=128-255") is None
    rows = {next(iter(row.values())): row for row in figures.rows("position")}
    assert (rows["128-255"]["tokens"], rows["128-255"]["mean KL"]) == ("0 + 128 not finite", "–")
    assert rows["0-63"]["tokens"] == "63"


@pytest.mark.long
def test_a_state_in_bf16_loses_more_the_longer_the_text(bf16: Any) -> None:
    """Rounded after every chunk of 64: nothing before the first, after 512 tokens five times what it is before 128."""
    texts = [f"{one.text}\n\n" for one in read_json_lines(CORPUS / "mathematics.jsonl")]
    documents = [CorpusDocument(str(n), "long", "".join(texts[n::4])[:2200]) for n in range(4)]
    branch = open_engine(EngineSettings(SANDBOX, recurrent_state_dtype="bfloat16"))
    found = {key: m.value for key, m in compared(KLProbe(documents), branch, bf16).items()}
    first, early, late = (found[f"kl_divergence[position={name}]"] for name in ("0-63", "64-127", "512-1023"))
    assert first < 1e-9
    assert 0 < 5 * early < late


# -- scales that no file contradicts


@pytest.mark.long
def test_scales_of_inputs_and_of_the_cache_that_no_file_contradicts_show_in_the_kl(bf16: Any, tmp_path: Path) -> None:
    chosen = sample(load_corpus(CORPUS)[::7], bf16.tokenizer, 1, 100_000)
    states, head = hidden_states(bf16, chosen.requests), bf16.output_head()

    def kl(folder: Path) -> float:
        return sum(divergences(open_engine(folder), chosen, states, head)) / sum(chosen.units)

    undamaged = kl(folder_of("main"))
    for damage in (inputs_twenty_times, clipping_cache):
        assert kl(copied(folder_of("main"), tmp_path / damage.__name__, damage)) > 5 * undamaged
