"""Evidence by real probe code, through the real runner: what a stub deployment answers is all that is made up."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.probes import Captures, Probe, Progress, Sink
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.items import Work
from q36eval.run.rounds import measure_branch, run_probes
from tests.app.satisfiable.stub_deployment import Fault, RightAnswers, StubDeployment, right_answers


class MemorySink(Sink):
    def __init__(self, known: Iterable[ItemOutcome] = ()) -> None:
        self.items: list[ItemOutcome] = list(known)
        self.measurements: list[Measurement] = []
        self.failures: list[ProbeFailure] = []

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items += outcomes

    def add_measurement(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def add_failure(self, failure: ProbeFailure) -> None:
        self.failures.append(failure)

    def known_items(self) -> Sequence[ItemOutcome]:
        return tuple(self.items)


class Silent(Progress):
    def stage(self, title: str, total: int) -> None: ...

    def advance(self, count: int = 1) -> None: ...


@dataclass(frozen=True)
class Asked:
    """One probe, what it asked a deployment that answers as the reference does, and what it made of that."""

    probe: Any
    tokenizer: Any
    work: Work
    captures: Captures
    outcomes: tuple[ItemOutcome, ...]
    measurements: tuple[Measurement, ...]

    @cached_property
    def right(self) -> RightAnswers:
        return right_answers([self.probe])

    def with_fault(self, fault: Fault) -> tuple[Measurement, ...]:
        """What is measured of a deployment with that fault: the items it concerns are asked anew."""
        kept = [outcome for outcome in self.outcomes if outcome.item_key not in fault.items]
        sink = MemorySink(kept)
        done = frozenset(outcome.item_key for outcome in kept)
        engine = StubDeployment(self.tokenizer, self.right, fault)
        measure_branch(engine, [Work(self.probe, self.work.items, done=done)], self.captures, sink, Silent())
        assert not sink.failures
        return tuple(sink.measurements)


def ask(probe: Probe, tokenizer: Any, folder: Path) -> Asked:
    """The probe asks the stub, reference and branch alike, all that it plans."""
    works: list[Work] = []
    captures: dict[ProbeName, Capture] = {}
    sink, deployment = MemorySink(), StubDeployment(tokenizer, RightAnswers({}, {}))

    def captures_of(planned: Sequence[Work]) -> Captures:
        works.extend(planned)
        deployment.right = right_answers([probe])

        def open_capture(own: Probe) -> Capture:
            return Capture(folder, deployment.identity, own.name, own.suite_sha256)

        captures.update(captured(planned, open_capture, lambda: deployment, Silent()))
        return captures

    run_probes(deployment, tokenizer, captures_of, [probe], sink, Silent())
    assert not sink.failures, sink.failures
    return Asked(probe, tokenizer, works[0], captures, tuple(sink.items), tuple(sink.measurements))


def some(items: Sequence[str], share: float) -> list[str]:
    """A seeded part of them, spread over all."""
    return random.Random(7).sample(sorted(items), round(share * len(items)))
