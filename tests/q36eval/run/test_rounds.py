"""The runner and the reference captures: resume, retry, crashes, and a cache that never answers for another model."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from q36eval.engines import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.engines.retrying import with_retry
from q36eval.errors import UsageError
from q36eval.locks import exclusive
from q36eval.probes import Digest, ItemResults, Probe, Progress, Sink, WorkItem
from q36eval.records import (
    Answer,
    Counts,
    DeploymentIdentity,
    Direction,
    Interval,
    ItemOutcome,
    Measurement,
    ProbeFailure,
    ProbeName,
)
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.rounds import run_probes
from tests.raising import raises

IDENTITY = DeploymentIdentity(
    checkpoint_sha256="a", tokenizer_sha256="t", chat_template_sha256="c", engine="test", engine_version="1"
)


class CountingEngine(Engine):
    """Answers every request with a tensor of its length; errors as often as told, then recovers."""

    identity = IDENTITY
    tokenizer = None

    def __init__(self, errors: int = 0) -> None:
        self.asked: list[str] = []
        self.errors = errors

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for request in requests:
            if request.key in known:
                continue
            self.asked.append(request.key)
            if self.errors:
                self.errors -= 1
                yield Scored(request, None, error="out of memory")
            else:
                yield Scored(request, torch.full((1, 2), float(len(request.token_ids))))

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in requests:
            if request.key in known:
                continue
            self.asked.append(request.key)
            yield Generated(request, (), "text", "stop")

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    def head_weight(self) -> torch.Tensor:
        return torch.eye(2)


class LengthProbe(Probe):
    """One item per length; an item passes when both deployments saw the same tensor."""

    name = ProbeName.KL
    suite_sha256 = "suite"

    def __init__(self, count: int = 3, crash_in: str = "") -> None:
        self.count, self.crash_in = count, crash_in

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            WorkItem(f"item{i}", scores=(ScoreRequest(f"item{i}", tuple(range(i + 1))),)) for i in range(self.count)
        ]

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(values={}, tensors={"h": results.scored[item.key].hidden_states})

    def compare(self, engine: Any, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        if self.crash_in == "compare":
            raise KeyError("boom")
        error = results.error or reference.error
        score = None
        if error is None:
            score = float(torch.equal(results.scored[item.key].hidden_states, reference.tensors["h"]))
        return [
            ItemOutcome(
                probe=self.name,
                group="g",
                item_key=item.key,
                cluster=item.key,
                branch=Answer(score=score, error=error),
                reference=Answer(score=1.0),
            )
        ]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        if self.crash_in == "summarize":
            raise ZeroDivisionError("boom")
        return iter(())


class MemorySink(Sink):
    def __init__(self) -> None:
        self.items: list[ItemOutcome] = []
        self.failures: list[ProbeFailure] = []

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items += outcomes

    def add_measurement(self, measurement: Measurement) -> None:
        raise AssertionError("nothing is measured here")

    def add_failure(self, failure: ProbeFailure) -> None:
        self.failures.append(failure)

    def known_items(self) -> list[ItemOutcome]:
        return self.items


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


def run(
    tmp_path: Path, probe: Any, branch: Any, reference: Any, sink: MemorySink, progress: Silent | None = None
) -> None:
    """`reference` None: only what was captured is at hand."""
    told = progress or Silent()

    def open_capture(asking: Probe) -> Capture:
        return Capture(tmp_path, IDENTITY, asking.name, asking.suite_sha256)

    load = None if reference is None else lambda: reference
    run_probes(branch, None, lambda works: captured(works, open_capture, load, told), [probe], sink, told)


def test_the_reference_is_captured_once_and_the_branch_measured_anew(tmp_path: Path) -> None:
    reference, first, second = CountingEngine(), CountingEngine(), CountingEngine()
    run(tmp_path, LengthProbe(), first, reference, MemorySink())
    run(tmp_path, LengthProbe(), second, reference, MemorySink())
    assert len(reference.asked) == 3
    assert len(first.asked) == len(second.asked) == 3


def test_a_resumed_run_asks_no_item_twice(tmp_path: Path) -> None:
    sink = MemorySink()
    run(tmp_path, LengthProbe(2), CountingEngine(), CountingEngine(), sink)
    again = CountingEngine()
    run(tmp_path, LengthProbe(4), again, CountingEngine(), sink)
    assert again.asked == ["item2", "item3"]
    assert [item.item_key for item in sink.items] == ["item0", "item1", "item2", "item3"]


def test_an_errored_request_is_retried_and_what_stays_errored_is_not_wrong(tmp_path: Path) -> None:
    recovered, broken = MemorySink(), MemorySink()
    run(tmp_path, LengthProbe(), CountingEngine(errors=2), CountingEngine(), recovered)
    assert [item.branch.score for item in recovered.items] == [1.0] * 3
    run(tmp_path, LengthProbe(), CountingEngine(errors=100), CountingEngine(), broken)
    assert [(item.branch.score, item.branch.error) for item in broken.items] == [(None, "out of memory")] * 3


def test_an_errored_reference_is_not_kept(tmp_path: Path) -> None:
    sink = MemorySink()
    run(tmp_path, LengthProbe(), CountingEngine(), CountingEngine(errors=100), sink)
    assert all(item.branch.score is None for item in sink.items)
    assert len(Capture(tmp_path, IDENTITY, ProbeName.KL, "suite")) == 0


class NotNumbers(LengthProbe):
    """Its second item's answer cannot be kept."""

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(error="not numbers") if item.key == "item1" else super().digest(engine, item, results)


def test_a_digest_that_errors_is_not_kept_as_an_answer_of_the_reference(tmp_path: Path) -> None:
    sink = MemorySink()
    run(tmp_path, NotNumbers(), CountingEngine(), CountingEngine(), sink)
    capture = Capture(tmp_path, IDENTITY, ProbeName.KL, "suite")
    assert sorted(capture) == ["item0", "item2"]
    assert capture.manifest is None
    errors = {item.item_key: item.branch.error for item in sink.items}
    assert errors == {
        "item0": None,
        "item1": "the reference could not be measured on this item",
        "item2": None,
    }


@pytest.mark.parametrize("where", ["compare", "summarize"])
def test_a_crashed_probe_is_recorded_as_failed(tmp_path: Path, where: str) -> None:
    sink = MemorySink()
    run(tmp_path, LengthProbe(crash_in=where), CountingEngine(), CountingEngine(), sink)
    assert [(failure.probe, failure.kind) for failure in sink.failures] == [(ProbeName.KL, "crashed")]
    assert "boom" in sink.failures[0].reason


def test_a_capture_answers_for_its_own_identity_only(tmp_path: Path) -> None:
    capture = Capture(tmp_path, IDENTITY, ProbeName.KL, "suite")
    capture.share({"head": torch.eye(2)})
    capture.add("x", Digest(values={"a": 1}, tensors={"h": torch.ones(2)}))
    same = Capture(tmp_path, IDENTITY, ProbeName.KL, "suite")["x"]
    assert same.values == {"a": 1}
    assert sorted(same.tensors) == ["h", "head"]
    for field in ("checkpoint_sha256", "tokenizer_sha256", "engine_version", "kv_cache_dtype"):
        other = IDENTITY.model_copy(update={field: "other"})
        assert "x" not in Capture(tmp_path, other, ProbeName.KL, "suite")
    assert "x" not in Capture(tmp_path, IDENTITY, ProbeName.KL, "another suite")


class OtherTokens(LengthProbe):
    """The same items by their keys, asked in other tokens, as by another version of a tokenizer's library."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            WorkItem(item.key, scores=(ScoreRequest(item.key, (7, *item.scores[0].token_ids)),))
            for item in super().plan(tokenizer)
        ]


def test_answers_to_other_tokens_are_refused(tmp_path: Path) -> None:
    run(tmp_path, LengthProbe(), CountingEngine(), CountingEngine(), MemorySink())
    with raises(UsageError, "capture-tokens-differ", "3 of"):
        run(tmp_path, OtherTokens(), CountingEngine(), CountingEngine(), MemorySink())


def test_without_a_reference_what_is_missing_is_refused_and_what_is_there_judged(tmp_path: Path) -> None:
    with raises(UsageError, "pack-lacks-items", "3 of"):
        run(tmp_path, LengthProbe(), CountingEngine(), None, MemorySink())
    assert not list(tmp_path.iterdir())
    run(tmp_path, LengthProbe(), CountingEngine(), CountingEngine(), MemorySink())
    sink = MemorySink()
    run(tmp_path, LengthProbe(), CountingEngine(), None, sink)
    assert [item.branch.score for item in sink.items] == [1.0] * 3


class Watched(Silent):
    """Calls `then` at every stage whose title begins with `title`."""

    def __init__(self, title: str, then: Callable[[], object]) -> None:
        self.title, self.then = title, then

    def stage(self, title: str, total: int) -> None:
        if title.startswith(self.title):
            self.then()


def test_two_gates_at_once_capture_the_reference_together(tmp_path: Path) -> None:
    """The second waits, says so, and captures only what the first did not; nothing is lost and nothing crashes."""
    capturing, waited = Event(), Event()
    first, second = CountingEngine(), CountingEngine()
    sinks = MemorySink(), MemorySink()

    def hold_up_the_first() -> None:
        capturing.set()
        waited.wait(timeout=300)  # only runs out when the second does not wait, which fails below

    def gate(count: int, reference: CountingEngine, sink: MemorySink, progress: Watched) -> None:
        run(tmp_path, LengthProbe(count), CountingEngine(), reference, sink, progress)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(gate, 3, first, sinks[0], Watched("capturing", hold_up_the_first))
        assert capturing.wait(timeout=300)
        two = pool.submit(gate, 5, second, sinks[1], Watched("waiting for another run", waited.set))
        two.result()
        one.result()
    assert waited.is_set()
    assert (first.asked, second.asked) == (["item0", "item1", "item2"], ["item3", "item4"])
    assert [[item.branch.score for item in sink.items] for sink in sinks] == [[1.0] * 3, [1.0] * 5]
    assert len(Capture(tmp_path, IDENTITY, ProbeName.KL, "suite")) == 5


def test_a_complete_capture_is_read_without_a_lock(tmp_path: Path) -> None:
    run(tmp_path, LengthProbe(), CountingEngine(), CountingEngine(), MemorySink())
    refuse = Watched("waiting", lambda: pytest.fail("it waits for a lock"))
    with exclusive(Capture(tmp_path, IDENTITY, ProbeName.KL, "suite").lock_file):
        run(tmp_path, LengthProbe(), CountingEngine(), CountingEngine(), MemorySink(), refuse)


class TwiceTheSame(LengthProbe):
    """Measures one metric of one slice twice, with different figures."""

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        for value in (1.0, 2.0):
            yield Measurement(
                probe=self.name,
                metric="kl_divergence",
                unit="nats/token",
                direction=Direction.LOWER_IS_BETTER,
                estimator="mean",
                value=value,
                effect=value,
                effect_interval=Interval(lower=value, upper=value, level=0.95, method="none"),
                counts=Counts(total=1, scored=1, errored=0),
            )


def test_two_figures_of_one_key_are_a_crash_and_neither_is_kept(tmp_path: Path) -> None:
    sink = MemorySink()
    run(tmp_path, TwiceTheSame(), CountingEngine(), CountingEngine(), sink)
    assert [failure.kind for failure in sink.failures] == ["crashed"]
    assert "kl.kl_divergence[all] more than once" in sink.failures[0].reason


class TwoTasks(LengthProbe):
    """Two tasks of three blocks, an item each; what is measured of a task is its name."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            WorkItem(f"{task}{i}", scores=(ScoreRequest(f"{task}{i}", (1,)),), task=task, block=i)
            for task in "ab"
            for i in range(3)
        ]

    def look(self, outcomes: Sequence[ItemOutcome], keys: Any) -> list[Measurement]:
        return [measured(key, len([o for o in outcomes if o.item_key.startswith(key[-2])])) for key in keys]

    def tasks_of(self, key: str) -> frozenset[str]:
        return frozenset(key[-2])

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome:
        raise AssertionError("nobody asks for it here")


def measured(key: str, value: float) -> Measurement:
    return Measurement(
        probe=ProbeName.KL,
        metric="count",
        slice=key[-2],
        unit="items",
        direction=Direction.HIGHER_IS_BETTER,
        estimator="census",
        value=value,
        effect=value,
        effect_interval=Interval(lower=0, upper=1, level=0.95, method="none"),
        counts=Counts(total=1, scored=1, errored=0),
    )


class SettlesAtTwo:
    """Judges task a alone, and wants two of its items."""

    def judged(self, probe: ProbeName) -> frozenset[str]:
        return frozenset({"kl.count[a]"})

    def resolved_early(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        return frozenset(each.key for each in measurements if each.value >= 2)

    def decided(self, measurements: Sequence[Measurement], complete: Collection[ProbeName]) -> tuple[str, ...]:
        return ()


def test_a_settled_task_is_asked_no_further_and_one_that_nobody_judges_is_asked_whole(tmp_path: Path) -> None:
    engine, sink = CountingEngine(), MemorySink()

    def open_capture(asking: Probe) -> Capture:
        return Capture(tmp_path, IDENTITY, asking.name, asking.suite_sha256)

    def captures_of(works: Any) -> Any:
        return captured(works, open_capture, lambda: CountingEngine(), Silent())

    run_probes(engine, None, captures_of, [TwoTasks()], sink, Silent(), SettlesAtTwo())
    assert sorted(engine.asked) == ["a0", "a1", "b0", "b1", "b2"]
    again = CountingEngine()
    sink.items = [outcome for outcome in sink.items if outcome.item_key in ("a0", "b0", "b1")]
    run_probes(again, None, captures_of, [TwoTasks()], sink, Silent(), SettlesAtTwo())
    assert sorted(again.asked) == ["a1", "b2"], "a resumed run asks what is missing and stops where it would have"


class Summarized(LengthProbe):
    """Remembers what it was to summarise."""

    seen: Sequence[ItemOutcome] = ()

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        self.seen = outcomes
        return iter(())


def test_a_run_resumed_with_fewer_items_is_judged_on_those_alone(tmp_path: Path) -> None:
    sink, fewer = MemorySink(), Summarized(2)
    run(tmp_path, LengthProbe(3), CountingEngine(), CountingEngine(), sink)
    run(tmp_path, fewer, CountingEngine(), CountingEngine(), sink)
    assert [outcome.item_key for outcome in fewer.seen] == ["item0", "item1"]


class OnePassEngine(CountingEngine):
    """Reads all its weights whenever it is to score what it does not know."""

    generates = False

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[list[str]] = []

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        new = [request.key for request in requests if request.key not in known]
        self.passes += [new] if new else []
        yield from super().score(requests, known)


class OtherProbe(LengthProbe):
    name = ProbeName.EVALS


def test_what_reads_all_weights_for_every_pass_scores_everything_in_one(tmp_path: Path) -> None:
    """All blocks of all probes; a resumed run what is missing."""
    sink = MemorySink()

    def open_capture(asking: Probe) -> Capture:
        return Capture(tmp_path, IDENTITY, asking.name, asking.suite_sha256)

    def captures_of(works: Any) -> Any:
        return captured(works, open_capture, lambda: CountingEngine(), Silent())

    every = ["a0", "a1", "a2", "b0", "b1", "b2", "item0", "item1", "item2"]
    for known, missing in (
        (frozenset(), every),
        (frozenset({"a0", "b0", "item1"}), ["a1", "a2", "b1", "b2", "item0", "item2"]),
    ):
        engine = OnePassEngine()
        sink.items = [outcome for outcome in sink.items if outcome.item_key in known]
        probes = [TwoTasks(), OtherProbe()]
        evaluated = run_probes(engine, None, captures_of, probes, sink, Silent(), SettlesAtTwo())
        assert [sorted(keys) for keys in engine.passes] == [missing]
        assert sorted(item.item_key for item in sink.items) == every
        assert [stage.items for stage in evaluated.stages] == [6, 3]


class ThreePerBlock(TwoTasks):
    """One task of three blocks, three items each."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [WorkItem(f"a{i}", scores=(ScoreRequest(f"a{i}", (1,)),), task="a", block=i // 3) for i in range(9)]


class SettlesAtFour(SettlesAtTwo):
    def resolved_early(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        return frozenset(each.key for each in measurements if each.value >= 4)


def test_a_run_killed_within_a_block_asks_the_whole_block_before_it_looks_again(tmp_path: Path) -> None:
    """Half a block is no sample of it, and a look that was taken before is not taken again with more items."""

    def open_capture(asking: Probe) -> Capture:
        return Capture(tmp_path, IDENTITY, asking.name, asking.suite_sha256)

    def captures_of(works: Any) -> Any:
        return captured(works, open_capture, lambda: CountingEngine(), Silent())

    whole, sink = MemorySink(), MemorySink()
    run_probes(CountingEngine(), None, captures_of, [ThreePerBlock()], whole, Silent(), SettlesAtFour())
    assert [item.item_key for item in whole.items] == [f"a{i}" for i in range(6)]
    sink.items = whole.items[:4]
    run_probes(CountingEngine(), None, captures_of, [ThreePerBlock()], sink, Silent(), SettlesAtFour())
    assert sink.items == whole.items


def test_what_no_second_asking_would_change_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def call(requests: Sequence[ScoreRequest]) -> Iterator[Scored]:
        for request in requests:
            asked.append(request.key)
            yield Scored(request, None, error="no", permanent=request.key == "long")

    pauses: list[float] = []
    monkeypatch.setattr("q36eval.engines.retrying.pause", pauses.append)
    results = list(with_retry(call, [ScoreRequest("long", (1,)), ScoreRequest("unlucky", (1,))]))
    assert sorted(asked) == ["long", "unlucky", "unlucky", "unlucky"]
    assert {result.request.key for result in results} == {"long", "unlucky"}
    assert len(pauses) == 2
    assert pauses == sorted(pauses), "each wait is longer than the one before"
