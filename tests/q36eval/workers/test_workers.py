"""Workers compute what the engine alone does, bit for bit, in planned order, whichever of them are lost meanwhile."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from q36eval.engines import (
    Engine,
    EngineOptions,
    EngineSettings,
    ScoreRequest,
    open_engine,
)
from q36eval.engines.base import GenerationRequest, Scored
from q36eval.engines.workers import pool as pools
from q36eval.engines.workers.engine import WorkersEngine, in_units
from q36eval.engines.workers.worker import Replica
from q36eval.errors import CorruptCheckpointError, UsageError
from tests.raising import raises

pytest.importorskip("ray")
pytestmark = pytest.mark.long
REPOSITORY = Path(__file__).parents[3]
SANDBOX = REPOSITORY / "data" / "sandbox" / "bf16"
TWO = EngineOptions(workers=2).of(SANDBOX)


@pytest.fixture(scope="module")
def alone() -> Engine:
    """In this process: beside Ray's threads nothing is forked. (Whole gates are compared with forks, in their own.)"""
    engine = open_engine(SANDBOX)
    engine._workers = lambda: 1  # type: ignore[attr-defined]
    return engine


@pytest.fixture(scope="module")
def two() -> Iterator[WorkersEngine]:
    """One cluster for all tests here, which leaves nothing behind."""
    engine = open_engine(TWO)
    assert isinstance(engine, WorkersEngine)
    (session,) = pools._session_folders
    yield engine
    engine._pool.end()
    pools._pools.clear()
    pools._shut_down()
    assert not Path(session).exists()


@pytest.fixture(scope="module")
def ids(alone: Engine) -> tuple[int, ...]:
    text = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    return tuple(alone.tokenizer.encode(text, add_special_tokens=False))


@pytest.fixture(scope="module")
def texts(ids: tuple[int, ...]) -> list[ScoreRequest]:
    """Of many lengths; half of them after one prefix, which is worth computing apart; and one that fits no context."""
    apart = [ScoreRequest(f"text{n}", ids[37 * n : 37 * n + 50 + 53 * n % 500], 1, "apart") for n in range(10)]
    prefix = ids[:512]
    after = [ScoreRequest(f"after{n}", prefix + ids[600 + n : 640 + 2 * n], 513, "after", 512) for n in range(12)]
    return [*apart, *after, ScoreRequest("too long", ids * 40, 1, "apart")]


def states(results: Sequence[Scored]) -> dict[str, torch.Tensor | None]:
    return {result.request.key: result.hidden_states for result in results}


def same(one: dict[str, torch.Tensor | None], other: dict[str, torch.Tensor | None]) -> bool:
    """Bit for bit, and nothing in the place of nothing."""
    return one.keys() == other.keys() and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in ((one[key], other[key]) for key in one)
    )


def test_states_and_logits_are_those_of_the_engine_alone(
    alone: Engine, two: WorkersEngine, texts: list[ScoreRequest]
) -> None:
    ours, theirs = list(alone.score(texts)), list(two.score(texts))
    assert [result.request.key for result in ours] == [result.request.key for result in theirs], "planned order"
    assert same(states(ours), states(theirs))
    assert {r.request.key: (r.error, r.permanent) for r in ours} == {
        r.request.key: (r.error, r.permanent) for r in theirs
    }
    some = next(result.hidden_states for result in ours if result.hidden_states is not None)
    assert torch.equal(alone.logits(some), two.logits(some))
    assert torch.equal(alone.output_head().weight, two.output_head().weight)
    assert all(result.seconds > 0 for result in theirs if result.error is None)
    assert (two.identity, two.deterministic, two.generates, two.scores) == (
        alone.identity, alone.deterministic, alone.generates, alone.scores,
    )  # fmt: skip
    assert sum(two.spread["nodes"].values()) == 2


def test_what_is_known_changes_no_batch_of_the_rest(
    alone: Engine, two: WorkersEngine, texts: list[ScoreRequest]
) -> None:
    """As in a resumed run: the rows of a batch whose results are there already are computed again with the others."""
    known = {request.key for request in texts[::2]}
    rest = list(two.score(texts, known))
    whole = states(list(alone.score(texts)))
    assert same(states(rest), {key: value for key, value in whole.items() if key not in known})
    assert sum(result.repeated_seconds for result in rest) > 0
    assert list(two.score(texts, {request.key for request in texts})) == []


def test_answers_are_those_of_the_engine_alone(alone: Engine, two: WorkersEngine, ids: tuple[int, ...]) -> None:
    prompts = [
        GenerationRequest(f"{n}", ids[91 * n : 91 * n + 40 + 3 * n], 4, temperature=0.7 * (n % 2), seed=3)
        for n in range(8)
    ]
    prompts.append(GenerationRequest("too long", ids * 40, 8))
    ours, theirs = list(alone.generate(prompts)), list(two.generate(prompts))
    assert [replace(each, seconds=0.0) for each in ours] == [replace(each, seconds=0.0) for each in theirs]


def test_the_noise_floor_is_measured_by_the_same_perturbations(
    alone: Engine, two: WorkersEngine, texts: list[ScoreRequest]
) -> None:
    ours, theirs = alone.perturbations(), two.perturbations()
    assert [replace(each, variant=None) for each in ours] == [replace(each, variant=None) for each in theirs]
    some = next(result.hidden_states for result in alone.score(texts[:1]))
    for one, other in zip(ours, theirs, strict=True):
        if one.variant is None or one.name == "decode":  # token by token it takes longest, and the same way
            continue
        mine, its = one.variant(), other.variant()
        assert same(states(list(mine.score(texts[:3]))), states(list(its.score(texts[:3]))))
        assert torch.equal(mine.logits(some), its.logits(some))


def test_a_killed_worker_costs_nothing_but_time(alone: Engine, two: WorkersEngine, texts: list[ScoreRequest]) -> None:
    told: list[str] = []
    two.report_to(told.append)
    results = two.score(texts)
    first = next(results)
    os.kill(two._pool.members[0].facts.process, signal.SIGKILL)
    assert same(states(list(alone.score(texts))), states([first, *results]))
    # the one in its place is there, and computes the same
    assert same(states(list(alone.score(texts))), states(list(two.score(texts))))
    assert len(two._pool.members) == 2
    assert two.spread["lost"] == 1
    assert told[:1] == ["1 worker was lost so far; what it had not handed over is computed again by others."]


def test_whoever_stops_in_the_middle_goes_on_with_something_else(
    alone: Engine, two: WorkersEngine, texts: list[ScoreRequest]
) -> None:
    results = two.score(texts)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert same(states(list(two.score(texts[:3]))), states(list(alone.score(texts[:3]))))


def test_a_checkpoint_that_cannot_be_opened_is_refused_as_without_workers(two: WorkersEngine, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in SANDBOX.iterdir():
        content = file.read_bytes()
        (broken / file.name).write_bytes(content[:-100] if file.suffix == ".safetensors" else content)
    said = []
    for options in (EngineOptions(), EngineOptions(workers=2)):
        with pytest.raises(CorruptCheckpointError) as raised:
            open_engine(options.of(broken))
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert two.divided([]).batches == [], "the workers live on"


def test_another_checkpoint_under_the_same_path_is_refused_with_the_node(two: WorkersEngine) -> None:
    expected = two.identity.model_copy(update={"checkpoint_sha256": "0" * 64})
    number = two._pool.new_number()
    with raises(UsageError, "workers-differ", "On node", "checkpoint_sha256"):
        two._pool.open(Replica(number, EngineSettings(SANDBOX), expected))


STRANGER = """
import sys
from ray._raylet import GcsClient
print("answered", GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None))
"""


def test_nobody_else_may_call_a_cluster_of_this_machine(two: WorkersEngine) -> None:
    """It listens on every interface, and who may call it runs code as this user."""
    import ray

    address = ray.get_runtime_context().gcs_address
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    asked = [sys.executable, "-c", STRANGER, address]
    with_token = subprocess.run(
        asked, env=environment | pools.TOKEN, capture_output=True, text=True, timeout=100, check=False
    )
    assert "answered" in with_token.stdout, with_token.stderr
    stranger = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert "answered" not in stranger.stdout
    assert "AuthenticationError" in stranger.stderr


def test_batches_after_one_prefix_travel_together(texts: list[ScoreRequest]) -> None:
    apart, after = texts[:6], texts[10:22]
    batches = [
        apart[:3],
        apart[3:],
        *([request, other] for request, other in zip(after[::2], after[1::2], strict=True)),
    ]
    units = list(in_units(batches))
    assert list(chain.from_iterable(units)) == batches
    assert [len(unit) for unit in units] == [1, 1, 4, 2]
