"""Stored KV-cache scales against those of an engine that ignores them: both measured, the worse judged and named."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from q36eval.engines import EngineSettings, identity_of, open_engine
from q36eval.engines.base import ScoreRequest
from q36eval.kl.corpus import load_corpus
from q36eval.run.branch import Running
from q36eval.run.cache_scales import judge_worse_scales
from tests.commands import q36eval
from tests.q36eval.checkpoints.inspection.damage import Tensors, edit_tensors
from tests.raising import failing
from tests.small_corpus import write_corpus

ROOT = Path(__file__).parents[3]
SANDBOX = ROOT / "data" / "sandbox" / "bf16"
ATTENTION = "model.layers.2.self_attn"
REQUEST = ScoreRequest("a", tuple(range(5, 60)))


def with_scales(folder: Path, k: float, v: float, smaller: float = 1.0) -> Path:
    """`smaller`: values are so many times smaller, and what they are multiplied by larger: the same model."""

    def store(tensors: Tensors) -> None:
        tensors[f"{ATTENTION}.v_proj.weight"] /= smaller
        tensors[f"{ATTENTION}.o_proj.weight"] *= smaller
        tensors[f"{ATTENTION}.k_scale"], tensors[f"{ATTENTION}.v_scale"] = torch.tensor(k), torch.tensor(v)

    shutil.copytree(SANDBOX, folder)
    edit_tensors(folder, store)
    return folder


def states(settings: EngineSettings) -> torch.Tensor:
    (scored,) = open_engine(settings).score([REQUEST])
    return scored.hidden_states


@pytest.mark.long
@pytest.mark.parametrize(
    ("scales", "judged"),
    [
        ((1e-4, 1e-4, 1.0), "stored"),  # 448 of them is 0.045: most keys saturate
        ((1.0, 2.0**10, 1.0), "stored"),  # on the grid of all values up to 458,752 nearly all are 0
        ((1.0, 2.0**-12, 2.0**12), "ignored"),  # of values of some 2**-12 the grid of scale 1 leaves nothing
    ],
)
def test_the_worse_of_both_is_judged_and_named(scales: tuple[float, float, float], judged: str, tmp_path: Path) -> None:
    settings = EngineSettings(with_scales(tmp_path / "copy", *scales), kv_cache_dtype="fp8_e4m3")
    engine = open_engine(settings)
    losses = judge_worse_scales(engine, settings, lambda: load_corpus(ROOT / "data/corpus/sandbox"))
    assert losses.judged == judged
    assert max(losses.stored, losses.ignored) == {"stored": losses.stored, "ignored": losses.ignored}[judged]
    named = EngineSettings(settings.folder, kv_cache_dtype="fp8_e4m3", kv_scales=judged)
    assert engine.identity == identity_of(named)
    assert engine.identity.settings["kv_scales"] == judged
    (scored,) = engine.score([REQUEST])
    assert torch.equal(scored.hidden_states, states(named)), "from here on it computes with those"


def test_ignored_scales_are_those_of_no_scales_and_nothing_is_measured_without_a_choice(tmp_path: Path) -> None:
    folder = with_scales(tmp_path / "copy", 2.0**-12, 2.0**-12)
    stored, ignored = (
        states(EngineSettings(folder, kv_cache_dtype="fp8_e4m3", kv_scales=which)) for which in ("stored", "ignored")
    )
    assert torch.equal(ignored, states(EngineSettings(SANDBOX, kv_cache_dtype="fp8_e4m3")))
    assert not torch.equal(stored, ignored)

    # where there is no choice
    for settings in (
        EngineSettings(SANDBOX, kv_cache_dtype="fp8_e4m3"),
        EngineSettings(folder),
        EngineSettings(folder, kv_cache_dtype="fp8_e4m3", kv_scales="stored"),
    ):
        engine = open_engine(settings)
        before = engine.identity
        assert judge_worse_scales(engine, settings, failing(AssertionError())) is None  # type: ignore[arg-type]
        assert engine.identity == before


def test_a_resumed_run_keeps_the_scales_that_it_judged() -> None:
    identity = identity_of(EngineSettings(SANDBOX, kv_cache_dtype="fp8_e4m3", kv_scales="ignored"))
    cases = ((identity, None, None, "ignored"), (identity, None, "stored", "stored"), (None, None, None, None))
    for begun, judged, named, expected in (*cases, (None, "stored", None, "stored")):
        settings = EngineSettings(SANDBOX, kv_cache_dtype="fp8_e4m3", kv_scales=named)
        running = SimpleNamespace(request=SimpleNamespace(deployment=settings), run=SimpleNamespace(identity=begun))
        running._judged_scales = judged  # by this very run, whose engine is opened again
        assert Running.deployment.fget(running).kv_scales == expected  # type: ignore[attr-defined]


@pytest.mark.long
def test_a_run_says_which_scales_it_judged_and_what_both_cost(tmp_path: Path) -> None:
    folder = with_scales(tmp_path / "copy", 1.0, 2.0**-12, 2.0**12)
    sampled = {"per_canary": 1, "max_new_tokens": 6, "chat": False}
    corpus = write_corpus(tmp_path, [f"Obchod {n}: cena {7 * n} Kč." for n in range(12)], on_policy=sampled)
    quantized = ("--branch", str(folder), "--kv-cache-dtype", "fp8_e4m3", "--corpus", str(corpus))
    done = q36eval("kl", *quantized, state=tmp_path / "state")
    assert "judged with ignored scales" in done.stderr
    (run,) = json.loads(q36eval("history", "list", "--json", state=tmp_path / "state").stdout)["runs"]
    run = json.loads(q36eval("history", "show", run["id"], "--json", state=tmp_path / "state").stdout)
    assert '"kv_scales": "ignored"' in json.dumps(run)
    assert "nats/token with the stored scales" in json.dumps(run["provenance"])
