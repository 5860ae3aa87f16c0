"""Evidence by real probe code, through the real runner: what a stub deployment answers is all that is made up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from q36eval.probes import Probe, Progress
from q36eval.records import ItemOutcome, Measurement
from q36eval.references import Capture
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import Work
from q36eval.run.rounds import run_probes
from tests.app.satisfiable.stub_deployment import Fault, RightAnswers, StubDeployment, right_answers
from tests.q36eval.run.runner import MemorySink


@dataclass(frozen=True)
class Asked:
    """One probe, what it asked a deployment that answers as the reference does, and what it made of that."""

    probe: Any
    tokenizer: Any
    work: Work
    answers_of: Callable[[Sequence[Work]], ReferenceAnswers]
    outcomes: tuple[ItemOutcome, ...]
    measurements: tuple[Measurement, ...]

    @cached_property
    def right(self) -> RightAnswers:
        return right_answers([self.probe])

    def with_fault(self, fault: Fault) -> tuple[Measurement, ...]:
        """What is measured of a deployment with that fault: the items it concerns are asked anew."""
        sink = MemorySink([outcome for outcome in self.outcomes if outcome.item_key not in fault.items])
        engine = StubDeployment(self.tokenizer, self.right, fault)
        run_probes(lambda: engine, self.tokenizer, self.answers_of, [self.probe], sink, Progress())
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
    sink, deployment = MemorySink(), StubDeployment(tokenizer, RightAnswers({}, {}))

    def open_capture(own: Probe) -> Capture:
        return Capture(folder, deployment.identity, own.name, own.suite_sha256)

    def answers_of(planned: Sequence[Work]) -> ReferenceAnswers:
        works.extend(planned)
        deployment.right = right(probe)
        return ReferenceAnswers(planned, open_capture, lambda: deployment, Progress())

    run_probes(lambda: deployment, tokenizer, answers_of, [probe], sink, Progress())
    assert not sink.failures, sink.failures
    return Asked(probe, tokenizer, works[0], answers_of, tuple(sink.items), tuple(sink.measurements))
