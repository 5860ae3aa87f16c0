"""Evidence by real probe code, through the real runner: what a stub deployment answers is all that is made up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.probes import Captures, Probe, Progress
from q36eval.records import ItemOutcome, Measurement
from q36eval.references import Capture
from q36eval.run.capture import captured
from q36eval.run.items import Work
from q36eval.run.rounds import measure_branch, run_probes
from tests.app.satisfiable.stub_deployment import Fault, RightAnswers, StubDeployment, right_answers
from tests.q36eval.run.runner import MemorySink


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
        sink = MemorySink(list(kept))
        done = frozenset(outcome.item_key for outcome in kept)
        engine = StubDeployment(self.tokenizer, self.right, fault)
        measure_branch(engine, [Work(self.probe, self.work.items, done=done)], self.captures, sink, Progress())
        assert not sink.failures
        return tuple(sink.measurements)


def ask(
    probe: Probe,
    tokenizer: Any,
    folder: Path,
    right: Callable[[Any], RightAnswers] = lambda probe: right_answers([probe]),
) -> Asked:
    """The probe asks the stub, reference and branch alike, all that it plans; `right` is what the stub knows."""
    works: list[Work] = []
    captures: list[Captures] = []
    sink, deployment = MemorySink(), StubDeployment(tokenizer, RightAnswers({}, {}))

    def captures_of(planned: Sequence[Work]) -> Captures:
        works.extend(planned)
        deployment.right = right(probe)

        def open_capture(own: Probe) -> Capture:
            return Capture(folder, deployment.identity, own.name, own.suite_sha256)

        captures.append(captured(planned, open_capture, lambda: deployment, Progress()))
        return captures[0]

    run_probes(deployment, tokenizer, captures_of, [probe], sink, Progress())
    assert not sink.failures, sink.failures
    return Asked(probe, tokenizer, works[0], captures[0], tuple(sink.items), tuple(sink.measurements))
