"""What the tests of a run hand to the runner: engines and probes that are made up, a sink in memory, and one call."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from q36eval.engines import Engine, ScoreRequest
from q36eval.engines.base import Generated, GenerationRequest, Scored
from q36eval.engines.logits import OutputHead
from q36eval.probes import Digest, ItemResults, Probe, Progress, Sink, WorkItem
from q36eval.records import Answer, DeploymentIdentity, ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.references import Capture
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import Work
from q36eval.run.rounds import Evaluated, run_probes
from tests import outcomes
from tests.q36eval.gate.evidence import census

IDENTITY = DeploymentIdentity(
    checkpoint_sha256="a", tokenizer_sha256="t", chat_template_sha256="c", engine="test", engine_version="1"
)


def outcome(probe: ProbeName, key: str, branch: Answer, reference: Answer | None = None) -> ItemOutcome:
    """The outcome of one item, which is a cluster of its own."""
    return outcomes.outcome(probe, key, branch, reference or Answer(score=1.0), group="g")


def measured(part: str, value: float, probe: ProbeName = ProbeName.KL) -> Measurement:
    """The figure `count[part]` of a probe."""
    return census(probe, "count", value, part).model_copy(update={"clusters": None})


class CountingEngine(Engine):
    """Scores a request with a tensor of its length and answers it with `says`; `asked` are the keys of requests, and
    `passes` those of each call that scores any.

    It errors `errors` times, and always on the requests in `broken`.
    """

    identity = IDENTITY
    tokenizer = None

    def __init__(self, errors: int = 0, says: str = "text", broken: Collection[str] = ()) -> None:
        self.asked: list[str] = []
        self.passes: list[list[str]] = []
        self.errors, self.says, self.broken = errors, says, broken

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        new = [request.key for request in requests if request.key not in known]
        self.passes += [new] if new else []
        for request in self._new(requests, known):
            if self.errors:
                self.errors -= 1
                yield Scored(request, None, error="out of memory")
            else:
                yield Scored(request, torch.full((1, 2), float(len(request.token_ids))))

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in self._new(requests, known):
            error = "out of memory" if request.key in self.broken else None
            yield Generated(request, tuple(range(len(request.token_ids))), self.text_of(request), "stop", error=error)

    def text_of(self, request: GenerationRequest) -> str:
        return self.says

    def _new(self, requests: Sequence[Any], known: Collection[str]) -> Iterator[Any]:
        for request in requests:
            if request.key not in known:
                self.asked.append(request.key)
                yield request

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    def output_head(self) -> OutputHead:
        return OutputHead(torch.eye(2))


def scoring(key: str, tokens: tuple[int, ...] = (1,), **place: Any) -> WorkItem:
    """An item that is one scored text."""
    return WorkItem(key, scores=(ScoreRequest(key, tokens),), **place)


class LengthProbe(Probe):
    """One item per length; an item passes when both deployments saw the same tensor."""

    name = ProbeName.KL
    suite_sha256 = "suite"

    def __init__(self, count: int = 3, crash_in: str = "") -> None:
        self.count, self.crash_in = count, crash_in
        self.summarized: list[str] = []

    def plan(self, tokenizer: Any) -> list[WorkItem]:
        return [scoring(f"item{i}", tuple(range(i + 1))) for i in range(self.count)]

    def digest(self, engine: Any, item: WorkItem, results: ItemResults) -> Digest:
        return Digest(values={}, tensors={"h": results.scored[item.key].hidden_states})

    def compare(self, engine: Any, item: WorkItem, results: ItemResults, reference: Digest) -> list[ItemOutcome]:
        if self.crash_in == "compare":
            raise KeyError("boom")
        error = results.error or reference.error
        score = None
        if error is None:
            score = float(torch.equal(results.scored[item.key].hidden_states, reference.tensors["h"]))
        return [outcome(self.name, item.key, Answer(score=score, error=error))]

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        self.summarized = [outcome.item_key for outcome in outcomes]
        if self.crash_in == "summarize":
            raise ZeroDivisionError("boom")
        return iter(())

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome:
        raise AssertionError("nobody asks for it here")


@dataclass
class MemorySink(Sink):
    """Keeps everything; `items` given are those of an earlier run."""

    items: list[ItemOutcome] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    failures: list[ProbeFailure] = field(default_factory=list)

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items += outcomes

    def add_measurement(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def add_failure(self, failure: ProbeFailure) -> None:
        self.failures.append(failure)

    def known_items(self) -> list[ItemOutcome]:
        return list(self.items)


@dataclass(frozen=True)
class Ran:
    """A run that ended: the branch's engine, what it wrote and what was evaluated."""

    branch: Any
    sink: MemorySink
    evaluated: Evaluated


def run(
    folder: Path,
    probes: Probe | Sequence[Probe],
    branch: Engine | None = None,
    reference: Engine | None = None,
    sink: Any = None,
    rule: Any = None,
    progress: Progress | None = None,
    *,
    pack_alone: bool = False,
    one_at_a_time: bool = False,
    opening: Callable[[str, Engine], Engine] = lambda name, engine: engine,
    answered: Callable[[Work], None] | None = None,
    own_template: Any = None,
) -> Ran:
    """Run the probes against what `folder` holds of the reference; with `pack_alone` nothing more is captured.

    `opening` is called with "branch" or "reference" whenever that is opened.
    """
    branch, sink, progress = branch or CountingEngine(), sink or MemorySink(), progress or Progress()
    asked = reference or branch

    def open_capture(own: Probe) -> Capture:
        return Capture(folder, asked.identity, own.name, own.suite_sha256, suite=dict(own.suite_fields))

    def answers_of(works: Any) -> ReferenceAnswers:
        load = None if pack_alone else lambda: opening("reference", reference or CountingEngine())
        return ReferenceAnswers(works, open_capture, load, progress, one_at_a_time=one_at_a_time)

    several = [probes] if isinstance(probes, Probe) else probes
    opened, more = partial(opening, "branch", branch), {"answered": answered, "own_template": own_template}
    evaluated = run_probes(opened, asked.tokenizer, answers_of, several, sink, progress, rule, **more)
    return Ran(branch, sink, evaluated)


def kept(folder: Path, probe: ProbeName = ProbeName.KL, suite: str = "suite") -> Capture:
    """What is captured of the reference."""
    return Capture(folder, IDENTITY, probe, suite)
