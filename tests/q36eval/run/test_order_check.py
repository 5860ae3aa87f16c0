"""The first items again at the end: where an engine is not what it was, a run is not measured and no branch wrong."""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from q36eval.engines.base import Generated, GenerationRequest
from q36eval.gate import decide
from q36eval.probes import Digest, ItemResults, Probe, WorkItem
from q36eval.records import Answer, ItemOutcome, Lane, Measurement, ProbeName, Verdict
from q36eval.run.order_check import FALSE_ALARMS, FEW, ITEMS, PROBES, STATED_RATE, most_disagreements
from tests.q36eval.gate.evidence import accuracy, only
from tests.q36eval.run.runner import CountingEngine, MemorySink, outcome
from tests.q36eval.run.runner import run as run_with

POLICY = only("min_recovery", 0.9, id="right", probe="evals", metric="accuracy", lanes=tuple(Lane))


class WearyEngine(CountingEngine):
    """Answers "right", and from request `tired_after` on something else; `known` tells it what shares its batches."""

    def __init__(self, tired_after: float = np.inf, wrong: str = "wrong", deterministic: bool = True) -> None:
        super().__init__()
        self.tired_after, self.wrong, self.deterministic = tired_after, wrong, deterministic
        self.batches: list[frozenset[str]] = []

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in self._new(requests, known):
            self.batches.append(frozenset(other.key for other in requests))
            text = self.wrong if len(self.asked) > self.tired_after else "right"
            yield Generated(request, (), text, "stop" if text else "error", error=None if text else "gone")


class AnswersProbe(Probe):
    """`count` questions in blocks of 30, right where the answer begins with "right"."""

    name = ProbeName.EVALS
    suite_sha256 = "suite"

    def __init__(self, count: int = 100) -> None:
        self.count = count

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        keys = [f"item{number:03}" for number in range(self.count)]
        return [
            WorkItem(key, generations=(GenerationRequest(key, (1,), 4),), task="t", block=number // 30)
            for number, key in enumerate(keys)
        ]

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(values={"text": results.generated[item.key].text})

    def compare(self, engine: Any, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        found = results.generated[item.key]
        branch = Answer(score=None, error=found.error) if found.error else _answer(found.text)
        return [outcome(self.name, item.key, branch, _answer(reference.values["text"]))]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        scores = [(int(o.branch.score or 0), int(o.reference.score or 0)) for o in outcomes]
        branch, reference = zip(*scores, strict=True)
        yield accuracy(branch, reference, "all")


def _answer(text: str) -> Answer:
    return Answer(score=float(text.startswith("right")), text=text)


def run(engine: Any, probe: AnswersProbe | None = None, sink: MemorySink | None = None) -> MemorySink:
    with TemporaryDirectory() as folder:
        asking = probe or AnswersProbe()
        return run_with(Path(folder), asking, engine, CountingEngine(says="right"), sink or MemorySink()).sink


def drift(sink: MemorySink) -> Measurement:
    (found,) = (m for m in sink.measurements if m.metric == "engine_drift")
    return found


def test_a_steady_engine_is_asked_the_first_items_once_more_in_their_batches() -> None:
    engine = WearyEngine()
    found = run(engine)
    assert engine.asked[100:] == engine.asked[:FEW]
    assert engine.batches[100:] == engine.batches[:FEW], "a deterministic engine repeats itself in the same batches"
    assert (drift(found).value, drift(found).reference_value, drift(found).counts.scored) == (0.0, 0.0, FEW)
    assert not found.failures
    report = decide(POLICY, found.measurements, failures=found.failures)
    assert (report.verdict, report.exit_code) == (Verdict.PASS, 0)
    assert [result.id for result in report.criteria] == ["right"]


@pytest.mark.parametrize("tired_after", [40, 100, 107])
def test_an_engine_that_tires_is_not_measured_whatever_its_branch_then_looks_like(tired_after: int) -> None:
    """From 40 on, 60 of 100 answers are wrong, which would be a FAIL; from 100 or 107 on the branch is flawless."""
    found = run(WearyEngine(tired_after))
    report = decide(POLICY, found.measurements, failures=found.failures)
    assert (report.verdict, report.exit_code) == (Verdict.INCONCLUSIVE, 4)
    assert {result.verdict for result in report.criteria} == {"NOT_MEASURED"}
    assert {result.code for result in report.criteria} == {"engine-drift"}
    assert [failure.kind for failure in found.failures] == ["crashed"]
    without = [m for m in found.measurements if m is not drift(found)]
    assert decide(POLICY, without).exit_code == (1 if tired_after == 40 else 0), "what would have been said without it"
    assert decide(POLICY, found.measurements).exit_code == 4, "the measurement alone says so, whatever the policy asks"


def test_what_the_weights_show_fails_a_branch_all_the_same() -> None:
    found = run(WearyEngine(100))
    damage = drift(found).model_copy(
        update={"probe": ProbeName.WEIGHTS, "metric": "integrity_faults", "value": 1.0, "reference_value": None}
    )
    report = decide(POLICY, [*found.measurements, damage], failures=found.failures)
    assert (report.verdict, report.exit_code, report.decisive) == (Verdict.FAIL, 1, ("checkpoint-intact",))


def test_other_words_count_where_the_engine_is_deterministic_and_only_there() -> None:
    assert run(WearyEngine(100, wrong="right, in other words")).failures
    assert not run(WearyEngine(100, wrong="right, in other words", deterministic=False)).failures
    assert run(WearyEngine(100, deterministic=False)).failures


def test_an_engine_that_answers_no_more_is_trouble_and_one_that_never_did_is_not_checked() -> None:
    found = run(WearyEngine(107, wrong=""))
    assert (drift(found).value, drift(found).counts.errored) == (0.0, 1)
    assert decide(POLICY, found.measurements, failures=found.failures).exit_code == 4
    found = run(WearyEngine(0, wrong=""))
    assert all(m.metric != "engine_drift" for m in found.measurements)


def test_a_short_run_and_a_resumed_one_are_checked_too() -> None:
    few = run(WearyEngine(5), AnswersProbe(5))
    assert (drift(few).value, drift(few).counts.total) == (5.0, 5)
    begun = MemorySink(items=run(WearyEngine()).items[:70])
    engine = WearyEngine()
    resumed = run(engine, sink=begun)
    assert len(engine.asked) == 30 + FEW
    assert drift(resumed).value == 0.0
    tired = run(WearyEngine(30), sink=MemorySink(items=begun.items[:70]))
    assert drift(tired).value == FEW
    assert re.search(r"of the first 8 items.* 8 changed", tired.failures[0].reason)


def test_a_noisy_engine_is_let_be_and_a_changed_one_is_found() -> None:
    """Both runs of 64 items scatter independently: false alarms stay below their share, a third of new scores shows."""
    rng = np.random.default_rng(5)
    trials, alpha = 400_000, FALSE_ALARMS / len(PROBES)
    limit = most_disagreements(ITEMS, (0, 0), deterministic=False)
    alarms = (rng.binomial(ITEMS, STATED_RATE, trials) > limit).mean()
    assert alarms <= alpha
    assert (rng.binomial(ITEMS, STATED_RATE, trials) > limit - 3).mean() > alpha, "no more than that is allowed"
    assert (rng.binomial(ITEMS, 1 / 3, trials) > limit).mean() > 0.95
    # a rate that the reference's own re-runs show is allowed for: both are drawn anew in every trial
    repeats = rng.binomial(250, 0.2, 2_000)
    limits = np.array([most_disagreements(ITEMS, (int(k), 250), deterministic=False) for k in repeats])
    assert (rng.binomial(ITEMS, 0.2, (200, 2_000)) > limits).mean() <= alpha
    assert most_disagreements(ITEMS, (0, 250), deterministic=False) == 8, "250 re-runs show less than 6 %"
    assert most_disagreements(ITEMS, (50, 250), deterministic=True) == 0
