"""The runner and the reference captures: resume, retry, crashes, and a cache that never answers for another model."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from q36eval.engines import ScoreRequest
from q36eval.engines.base import Scored
from q36eval.engines.retries import with_retry
from q36eval.errors import UsageError
from q36eval.locks import exclusive
from q36eval.probes import Digest, ItemResults, Progress, WorkItem
from q36eval.records import ItemOutcome, Measurement, ProbeName
from q36eval.references import Capture
from tests.q36eval.run.runner import IDENTITY, CountingEngine, LengthProbe, MemorySink, kept, measured, run, scoring
from tests.raising import raises


def test_the_reference_is_captured_once_and_a_resumed_run_asks_no_item_twice(tmp_path: Path) -> None:
    reference = CountingEngine()
    first, second = (run(tmp_path, LengthProbe(), reference=reference).branch for _ in range(2))
    assert len(reference.asked) == 3
    assert len(first.asked) == len(second.asked) == 3
    sink = run(tmp_path, LengthProbe(2)).sink
    assert run(tmp_path, LengthProbe(4), sink=sink).branch.asked == ["item2", "item3"]
    assert [item.item_key for item in sink.items] == ["item0", "item1", "item2", "item3"]


def test_an_errored_request_is_retried_and_what_stays_errored_is_neither_wrong_nor_kept(tmp_path: Path) -> None:
    recovered = run(tmp_path, LengthProbe(), CountingEngine(errors=2)).sink
    assert [item.branch.score for item in recovered.items] == [1.0] * 3
    broken = run(tmp_path, LengthProbe(), CountingEngine(errors=100)).sink
    assert [(item.branch.score, item.branch.error) for item in broken.items] == [(None, "out of memory")] * 3
    sink = run(tmp_path / "one", NotNumbers()).sink
    assert (sorted(kept(tmp_path / "one")), kept(tmp_path / "one").manifest) == (["item0", "item2"], None)
    missing = "the reference could not be measured on this item"
    assert {item.item_key: item.branch.error for item in sink.items} == {"item0": None, "item1": missing, "item2": None}
    sink = run(tmp_path / "all", LengthProbe(), reference=CountingEngine(errors=100)).sink
    assert all(item.branch.score is None for item in sink.items)
    assert len(kept(tmp_path / "all")) == 0


class NotNumbers(LengthProbe):
    """Its second item's answer cannot be kept."""

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(error="not numbers") if item.key == "item1" else super().digest(engine, item, results)


@pytest.mark.parametrize("where", ["compare", "summarize"])
def test_a_crashed_probe_is_recorded_as_failed(tmp_path: Path, where: str) -> None:
    (failure,) = run(tmp_path, LengthProbe(crash_in=where)).sink.failures
    assert (failure.probe, failure.kind) == (ProbeName.KL, "crashed")
    assert "boom" in failure.reason


def test_a_capture_answers_for_its_own_identity_only(tmp_path: Path) -> None:
    capture = kept(tmp_path)
    capture.share({"head": torch.eye(2)})
    capture.add("x", Digest(values={"a": 1}, tensors={"h": torch.ones(2)}))
    same = kept(tmp_path)["x"]
    assert same.values == {"a": 1}
    assert sorted(same.tensors) == ["h", "head"]
    for field in ("checkpoint_sha256", "tokenizer_sha256", "engine_version", "kv_cache_dtype"):
        other = IDENTITY.model_copy(update={field: "other"})
        assert "x" not in Capture(tmp_path, other, ProbeName.KL, "suite")
    assert "x" not in kept(tmp_path, suite="another suite")


class OtherTokens(LengthProbe):
    """The same items by their keys, asked in other tokens, as by another version of a tokenizer's library."""

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [scoring(item.key, (7, *item.scores[0].token_ids)) for item in super().plan(tokenizer)]


def test_what_is_captured_is_judged_and_what_is_missing_or_answers_other_tokens_refused(tmp_path: Path) -> None:
    with raises(UsageError, "pack-lacks-items", "3 of"):
        run(tmp_path, LengthProbe(), pack_alone=True)
    assert not list(tmp_path.iterdir())
    run(tmp_path, LengthProbe())
    assert [item.branch.score for item in run(tmp_path, LengthProbe(), pack_alone=True).sink.items] == [1.0] * 3
    with raises(UsageError, "capture-tokens-differ", "3 of"):
        run(tmp_path, OtherTokens())


class Watched(Progress):
    """Calls `then` whenever it is told of what begins with `title`."""

    def __init__(self, title: str, then: Callable[[], object]) -> None:
        self.title, self.then = title, then

    def stage(self, title: str, total: int) -> None:
        self.note(title)

    def within(self, what: str, done: int, total: int) -> None:
        self.note(what)

    def note(self, sentence: str) -> None:
        if sentence.startswith(self.title):
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
        run(tmp_path, LengthProbe(count), reference=reference, sink=sink, progress=progress)

    with ThreadPoolExecutor() as pool:
        one = pool.submit(gate, 3, first, sinks[0], Watched("capturing", hold_up_the_first))
        assert capturing.wait(timeout=300)
        two = pool.submit(gate, 5, second, sinks[1], Watched("waiting for another run", waited.set))
        two.result()
        one.result()
    assert waited.is_set()
    assert (first.asked, second.asked) == (["item0", "item1", "item2"], ["item3", "item4"])
    assert [[item.branch.score for item in sink.items] for sink in sinks] == [[1.0] * 3, [1.0] * 5]
    assert len(kept(tmp_path)) == 5


def test_a_complete_capture_is_read_without_a_lock(tmp_path: Path) -> None:
    run(tmp_path, LengthProbe())
    refuse = Watched("waiting", lambda: pytest.fail("it waits for a lock"))
    with exclusive(kept(tmp_path).lock_file):
        run(tmp_path, LengthProbe(), progress=refuse)


def test_two_figures_of_one_key_are_a_crash_and_neither_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LengthProbe, "summarize", lambda *_: iter([measured("all", 1.0), measured("all", 2.0)]))
    sink = run(tmp_path, LengthProbe()).sink
    assert [failure.kind for failure in sink.failures] == ["crashed"]
    assert "kl.count[all] more than once" in sink.failures[0].reason
    assert not sink.measurements


class Tasks(LengthProbe):
    """Tasks of three blocks, so many items each; what is measured of a task is how many were evaluated."""

    def __init__(self, tasks: str = "ab", each: int = 1) -> None:
        super().__init__()
        self.tasks, self.each = tasks, each

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [
            scoring(f"{task}{i}", task=task, block=i // self.each) for task in self.tasks for i in range(3 * self.each)
        ]

    def look(self, outcomes: Sequence[ItemOutcome], keys: Any) -> list[Measurement]:
        return [measured(key[-2], len([o for o in outcomes if o.item_key.startswith(key[-2])])) for key in keys]

    def tasks_of(self, key: str) -> frozenset[str]:
        return frozenset(key[-2])


class ResolvesAt:
    """Judges task a alone, and wants so many of its items."""

    def __init__(self, items: int) -> None:
        self.items = items

    def judged(self, probe: ProbeName) -> frozenset[str]:
        return frozenset({"kl.count[a]"})

    def resolved_early(self, measurements: Sequence[Measurement]) -> frozenset[str]:
        return frozenset(each.key for each in measurements if each.value >= self.items)

    def decided(self, measurements: Sequence[Measurement], complete: Collection[ProbeName]) -> tuple[str, ...]:
        return ()


def test_a_settled_task_is_asked_no_further_and_one_that_nobody_judges_is_asked_whole(tmp_path: Path) -> None:
    ran = run(tmp_path, Tasks(), rule=ResolvesAt(2))
    assert sorted(ran.branch.asked) == ["a0", "a1", "b0", "b1", "b2"]
    known = MemorySink([item for item in ran.sink.items if item.item_key in ("a0", "b0", "b1")])
    again = run(tmp_path, Tasks(), sink=known, rule=ResolvesAt(2)).branch
    assert sorted(again.asked) == ["a1", "b2"], "a resumed run asks what is missing and stops where it would have"


def test_a_run_killed_within_a_block_asks_the_whole_block_before_it_looks_again(tmp_path: Path) -> None:
    """Half a block is no sample of it, and a look that was taken before is not taken again with more items."""
    whole = run(tmp_path, Tasks("a", each=3), rule=ResolvesAt(4)).sink
    assert [item.item_key for item in whole.items] == [f"a{i}" for i in range(6)]
    resumed = run(tmp_path, Tasks("a", each=3), sink=MemorySink(whole.items[:4]), rule=ResolvesAt(4)).sink
    assert resumed.items == whole.items


def test_a_run_resumed_with_fewer_items_is_judged_on_those_alone(tmp_path: Path) -> None:
    fewer = LengthProbe(2)
    run(tmp_path, fewer, sink=run(tmp_path, LengthProbe(3)).sink)
    assert fewer.summarized == ["item0", "item1"]


class OnePassEngine(CountingEngine):
    """Reads all its weights whenever it is to score what it does not know."""

    generates = False


def test_what_reads_all_weights_for_every_pass_scores_everything_in_one(tmp_path: Path) -> None:
    """All blocks of all probes; a resumed run what is missing."""
    sink, other = MemorySink(), LengthProbe()
    other.name = ProbeName.EVALS
    every = ["a0", "a1", "a2", "b0", "b1", "b2", "item0", "item1", "item2"]
    for known, missing in (
        (frozenset(), every),
        (frozenset({"a0", "b0", "item1"}), ["a1", "a2", "b1", "b2", "item0", "item2"]),
    ):
        sink.items = [outcome for outcome in sink.items if outcome.item_key in known]
        ran = run(tmp_path, [Tasks(), other], OnePassEngine(), sink=sink, rule=ResolvesAt(2))
        assert [sorted(keys) for keys in ran.branch.passes] == [missing]
        assert sorted(item.item_key for item in sink.items) == every
        assert [stage.items for stage in ran.evaluated.stages] == [6, 3]


def test_what_no_second_asking_would_change_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def call(requests: Sequence[ScoreRequest]) -> Iterator[Scored]:
        for request in requests:
            asked.append(request.key)
            yield Scored(request, None, error="no", permanent=request.key == "long")

    pauses: list[float] = []
    monkeypatch.setattr("q36eval.engines.retries.pause", pauses.append)
    results = list(with_retry(call, [ScoreRequest("long", (1,)), ScoreRequest("unlucky", (1,))]))
    assert sorted(asked) == ["long", "unlucky", "unlucky", "unlucky"]
    assert {result.request.key for result in results} == {"long", "unlucky"}
    assert len(pauses) == 2
    assert pauses == sorted(pauses), "each wait is longer than the one before"
