"""A model run layer by layer gives the resident engine's numbers bit for bit, reads tensors once, and resumes."""

import os
import random
import shutil
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.checkpoints.reader import Checkpoint
from q36eval.engines import EngineSettings, ScoreRequest, layer_by_layer, layer_pass, open_engine, resident
from q36eval.engines.base import GenerationRequest
from q36eval.errors import ChangedError
from tests.branches import folder_of
from tests.profiles import LONG
from tests.q36eval.scoring import states_of

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox"
SHARED = 448


def tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(2, 900), k=count))


def requests(documents: int = 6) -> list[ScoreRequest]:
    """Documents of many lengths, and questions of two tasks after a long common text."""
    rng = random.Random(3)
    drawn = [
        ScoreRequest(f"document/{n}", tokens(rng, rng.randint(30, 260)), rng.randint(1, 20), "kl")
        for n in range(documents)
    ]
    for task in ("a", "b"):
        common = tokens(rng, SHARED)
        for n in range(3):
            own = tokens(rng, rng.randint(2, 60))
            first = SHARED + len(own) - 1
            drawn.append(ScoreRequest(f"{task}/{n}", common + own, first, f"evals/{task}", shared=SHARED))
    return drawn


@pytest.fixture(autouse=True)
def one_process_that_keeps_every_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "usable_workers", lambda: 1)
    monkeypatch.setattr(layer_pass, "SAVE_EVERY_S", 0.0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stored tensor was read since the engine was opened."""
    counted: Counter[str] = Counter()
    own = Checkpoint.read_into

    def read_into(self: Checkpoint, entry: Any, target: memoryview) -> None:
        counted[entry.name] += 1
        own(self, entry, target)

    monkeypatch.setattr(Checkpoint, "read_into", read_into)
    return counted


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "BF16": ("bf16", {}),
    "W4A4, FP8 head, FP8 cache, BF16 states": (
        "fp8-head",
        {"kv_cache_dtype": "fp8_e4m3", "recurrent_state_dtype": "bfloat16"},
    ),
    "Model Optimizer": ("nvfp4-modelopt", {}),
}


@pytest.mark.long
@pytest.mark.sized
@pytest.mark.parametrize("kind", list(OPTIONS) if LONG else list(OPTIONS)[:2])
def test_scores_and_logits_are_those_of_the_resident_engine(kind: str, reads: Counter[str]) -> None:
    folder, options = OPTIONS[kind]
    asked = requests()
    resident_one = open_engine(EngineSettings(folder_of(folder), **options))
    layered = open_engine(EngineSettings(folder_of(folder), placement="layers", **options))
    assert layered.identity == resident_one.identity  # so that either's captures are the other's
    expected = states_of(resident_one, asked)
    reads.clear()
    scored = states_of(layered, asked)
    assert scored.keys() == expected.keys()
    for key, each in expected.items():
        assert torch.equal(scored[key], each), key
        assert torch.equal(layered.logits(scored[key]), resident_one.logits(each))
    assert set(reads.values()) == {1}
    assert all(".layers." in name for name in reads)  # the others were read when it was opened


LAYERED = EngineSettings(SANDBOX / "bf16", placement="layers")


def opened(folder: Path, advanced: Any = lambda what, done, of: None) -> Any:
    engine = open_engine(LAYERED)
    engine.keep_in(folder, advanced)
    return engine


class Killed(BaseException):
    """Takes the process down at a moment of the test's choosing."""


def killed_after(layers: int) -> Any:
    def advanced(what: str, done: int, of: int) -> None:
        if done == layers:
            raise Killed

    return advanced


def layers_read(reads: Counter[str]) -> set[int]:
    return {int(name.split(".layers.")[1].split(".")[0]) for name in reads if ".layers." in name}


@pytest.mark.long
def test_a_killed_pass_goes_on_with_the_next_layer(tmp_path: Path, reads: Counter[str]) -> None:
    asked = requests(3)
    expected = states_of(opened(tmp_path / "whole"), asked)
    assert not list((tmp_path / "whole").glob("*"))  # nothing stays of a pass that was handed out
    folder = tmp_path / "killed"
    with pytest.raises(Killed):
        list(opened(folder, killed_after(3)).score(asked))
    with pytest.raises(Killed):  # the third layer was done, but not kept: killed before
        list(opened(folder, killed_after(4)).score(asked))
    (kept,) = folder.iterdir()
    unfinished = kept.with_suffix(".writing")  # as of one that was killed while it wrote, under the library's name
    unfinished.mkdir()
    (unfinished / ".tmpAbCdEf").write_bytes(b"half of it")
    steps: list[int] = []
    again = opened(folder, lambda what, done, of: steps.append(done))
    reads.clear()
    scored = states_of(again, asked)
    assert steps == list(range(3, len(again.model.model.layers) + 1))
    assert min(layers_read(reads)) == 3
    assert all(torch.equal(scored[key], each) for key, each in expected.items())
    assert not list(folder.glob("*"))


@pytest.mark.long
def test_what_was_kept_of_other_requests_or_damaged_is_not_gone_on_with(tmp_path: Path, reads: Counter[str]) -> None:
    with pytest.raises(Killed):
        list(opened(tmp_path, killed_after(3)).score(requests(3)))
    (kept,) = tmp_path.iterdir()
    written = kept.read_bytes()
    altered = bytearray(written)
    altered[-700] ^= 1
    for documents, content in ((2, written), (3, altered), (3, written[:-7])):
        tmp_path.mkdir(exist_ok=True)
        kept.write_bytes(content)
        reads.clear()
        list(opened(tmp_path).score(requests(documents)))
        assert min(layers_read(reads)) == 0


def test_what_nobody_went_on_with_for_a_week_is_deleted(tmp_path: Path) -> None:
    for name, age_s in (("old", layer_pass.ABANDONED_S + 60), ("new", layer_pass.ABANDONED_S - 3600)):
        (tmp_path / f"{name}.safetensors").write_bytes(b"states")
        os.utime(tmp_path / f"{name}.safetensors", (time.time() - age_s,) * 2)
    (tmp_path / "old.writing").mkdir()
    os.utime(tmp_path / "old.writing", (time.time() - layer_pass.ABANDONED_S - 60,) * 2)
    with pytest.raises(Killed):
        list(opened(tmp_path, killed_after(3)).score(requests(3)))
    left = {path.name for path in tmp_path.iterdir()}
    assert "new.safetensors" in left
    assert not {"old.safetensors", "old.writing"} & left
    assert len(left) == 2


def test_nothing_is_kept_of_files_that_changed_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "branch"
    shutil.copytree(SANDBOX / "bf16", folder)
    weights = folder / "model.safetensors"
    own = weights.read_bytes()

    def overwritten(what: str, done: int, of: int) -> None:
        if done == 0:
            with weights.open("r+b") as file:
                file.seek(len(own) - 4_000_000)
                file.write(bytes(1_000_000))
        if done == 3:
            raise Killed

    engine = open_engine(EngineSettings(folder, placement="layers"))
    engine.keep_in(tmp_path / "kept", overwritten)
    with pytest.raises(ChangedError):
        list(engine.score(requests(3)))
    assert not list((tmp_path / "kept").glob("*"))


@pytest.mark.long
def test_a_batch_that_fails_costs_itself_alone() -> None:
    engine: Any = open_engine(LAYERED)
    asked = requests(0)
    expected = states_of(engine, asked)
    first: torch.Tensor | None = None

    def fails_at_the_first_tasks_common_text(module: Any, arguments: Any, keywords: Any) -> None:
        nonlocal first
        if arguments[0].shape[0] == 1:
            first = arguments[0].clone() if first is None else first
            if torch.equal(arguments[0], first):
                raise RuntimeError("no memory for this one")

    engine.model.model.layers[2].register_forward_pre_hook(fails_at_the_first_tasks_common_text, with_kwargs=True)
    scored = {each.request.key: each for each in engine.score(asked)}
    failed = {key for key, each in scored.items() if each.error is not None}
    assert failed in ({"a/0", "a/1", "a/2"}, {"b/0", "b/1", "b/2"})
    assert all("no memory" in str(scored[key].error) for key in failed)
    assert all(torch.equal(scored[key].hidden_states, expected[key]) for key in expected.keys() - failed)


@pytest.mark.long
def test_what_cannot_be_copied_ahead_is_copied_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one shape: the states of one are never those of the batch before, whichever copy has no room."""
    rng = random.Random(5)
    asked = [ScoreRequest(f"document/{n}", tokens(rng, 96), 1, f"group/{n // 2}") for n in range(6)]
    own, copied = layer_pass._Copies.to_device, 0
    failing = 0

    def to_device(self: Any, states: torch.Tensor) -> torch.Tensor:
        nonlocal copied
        copied += 1
        if copied == failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return own(self, states)

    monkeypatch.setattr(layer_pass._Copies, "to_device", to_device)
    settings = EngineSettings(SANDBOX / "bf16", placement="layers", batch_rows=2)
    expected = states_of(open_engine(settings), asked)
    every = copied
    assert every >= 12
    for number in (1, 2, 3, every // 2, every - 1, every):
        copied, failing = 0, number
        found = states_of(open_engine(settings), asked)
        assert all(torch.equal(found[key], each) for key, each in expected.items())


@pytest.mark.long
def test_a_killed_pass_of_several_goes_on_where_a_little_less_memory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Counter[str]
) -> None:
    asked = requests(4)
    expected = states_of(open_engine(LAYERED), asked)
    monkeypatch.setattr(layer_by_layer, "available_bytes", lambda: int(1.18 * 2**19))
    with pytest.raises(Killed):
        list(opened(tmp_path, killed_after(4)).score(asked))
    monkeypatch.setattr(layer_by_layer, "available_bytes", lambda: int(1.02 * 2**19))
    again = opened(tmp_path)
    reads.clear()
    found = states_of(again, asked)
    assert all(torch.equal(found[key], each) for key, each in expected.items())
    layers = [name for name in reads if ".layers.0." in name]
    assert max(reads.values()) > 1, "all states fit at once"
    assert {reads[name] for name in layers} == {max(reads.values()) - 1}, "the first pass began anew"


def test_a_prefix_is_computed_once_a_layer_and_nothing_is_generated() -> None:
    engine: Any = open_engine(LAYERED)
    asked = [GenerationRequest("one", (5, 6, 7), 4), GenerationRequest("two", (5, 6), 4)]
    (answer,) = engine.generate(asked, known={"two"})
    assert (engine.generates, answer.finish_reason, answer.permanent) == (False, "error", True)
    widths: list[tuple[int, int]] = []
    layer = engine.model.model.layers[0]
    layer.register_forward_pre_hook(lambda m, a, k: widths.append(tuple(a[0].shape[:2])), with_kwargs=True)
    list(engine.score(requests(0)))
    assert widths.count((1, SHARED)) == 2  # one for each task
    assert len(widths) == 4


@pytest.mark.long
def test_its_noise_floor_is_of_other_batches_and_rounded_logits() -> None:
    engine = open_engine(LAYERED)
    there = {each.name: each for each in engine.perturbations()}
    whole = open_engine(EngineSettings(SANDBOX / "bf16")).perturbations()
    assert [each.name for each in whole] == list(there)  # none is missing silently
    assert [name for name, each in there.items() if each.variant] == ["batch-of-one", "another-batch", "bf16-logits"]
    assert all(each.skipped for each in there.values() if not each.variant)
    asked = requests(5)[:5]
    for name in ("batch-of-one", "another-batch"):
        make, expected = there[name].variant, next(each.variant for each in whole if each.name == name)
        other, resident_one = states_of(make(), asked), states_of(expected(), asked)
        assert all(torch.equal(each, resident_one[key]) for key, each in other.items())


def long_texts() -> list[ScoreRequest]:
    """One of a thousand tokens, and two that go on from a prefix of as many."""
    long = tokens(random.Random(5), 1000)
    common = [ScoreRequest(f"after/{n}", (*long[:960], *range(3, 20 + n)), 962, "b", shared=960) for n in range(3)]
    return [ScoreRequest("long", long, 2, "a"), *common]


@pytest.mark.long
@pytest.mark.parametrize("planned", [True, False], ids=["planned", "out of memory"])
def test_long_rows_go_through_a_layer_in_parts(planned: bool) -> None:
    expected = states_of(open_engine(EngineSettings(SANDBOX / "bf16")), long_texts())
    layered: Any = open_engine(LAYERED)
    widths: set[int] = set()

    def run(module: Any, arguments: Any, given: dict[str, Any]) -> None:
        widths.add(given["inputs_embeds"].shape[1])
        if given["inputs_embeds"].shape[1] > 512:
            raise torch.OutOfMemoryError("as if")

    layered.model.model.register_forward_pre_hook(run, with_kwargs=True)
    if planned:
        plan = layered.plan
        kept = plan.costs.recurrent_row + plan.costs.conv_row + 1000 * plan.costs.kv_token
        layered.__dict__["plan"] = replace(plan, batches=plan.costs.reading(1, 512, 488) + kept)
    found = states_of(layered, long_texts())
    assert max(widths) == (512 if planned else 1000)
    for key, each in expected.items():
        assert found[key].shape == each.shape
        assert planned <= torch.equal(found[key], each), "passes of 512 tokens give the same bits on a CPU"
        assert float((found[key] - each).abs().median()) < 0.02, key
