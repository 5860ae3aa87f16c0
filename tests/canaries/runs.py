"""Whole runs of the canary probe on a scripted or a real engine, and what they told."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from q36eval.canaries.cases import Case, cases_of
from q36eval.canaries.probe import CanaryProbe, rendered
from q36eval.canaries.specification import CanarySpec
from q36eval.engines import Engine, ScoreRequest
from q36eval.engines.base import Generated, GenerationRequest, Scored
from q36eval.engines.logits import OutputHead
from q36eval.probes import Probe, Progress, Sink
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from tests import outcomes
from tests.q36eval.run.runner import IDENTITY, run

BF16 = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
TRAINED = pytest.mark.skipif(
    not (BF16 / "model.safetensors").exists(), reason="the sandbox has no trained weights in this checkout"
)
GREETING = """
id: greeting
skill: greeting
lanes: [freeform]
why: to have one
generation: {max_new_tokens: 8}
checks: [exact_text]
must_pass:
  - name: hello
    key: hello
    messages: [{role: user, content: "Say hello."}]
    expected: {text: Hello}
    answer: Hello
"""
"""A canary of one's own."""

Said = Callable[[Case], tuple[str, str]]
"""What is answered to a question, and why the answer ended."""


class Told(Sink, Progress):
    """Keeps what a run is told; an outcome replaces the one before it, as in history. `items` are an earlier run's."""

    def __init__(self, items: Sequence[ItemOutcome] = ()) -> None:
        self.items = {outcome.item_key: outcome for outcome in items}
        self.measurements: dict[str, Measurement] = {}
        self.failures: list[ProbeFailure] = []
        self.asked: list[GenerationRequest] = []

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        self.items |= {outcome.item_key: outcome for outcome in outcomes}

    def add_measurement(self, measurement: Measurement) -> None:
        self.measurements[f"{measurement.metric}[{measurement.slice}]"] = measurement

    def add_failure(self, failure: ProbeFailure) -> None:
        self.failures.append(failure)

    def known_items(self) -> list[ItemOutcome]:
        return list(self.items.values())


def run_of(
    probe: Probe,
    branch: Engine,
    place: Path,
    reference: Engine | None = None,
    *,
    items: Sequence[ItemOutcome] = (),
    own_template: Any = None,
) -> Told:
    """A run of that probe alone. Without a `reference` the pack at `place` holds what it answered."""
    told, alone = Told(items), reference is None
    run(place, probe, branch, reference, told, progress=told, pack_alone=alone, own_template=own_template)
    assert not told.failures
    return told


outcome = partial(outcomes.outcome, ProbeName.CANARIES)
"""Of the question `CANARY/PROMPT`."""


def right(case: Case) -> tuple[str, str]:
    thought = "Počítám.\n</think>\n\n" if case.generation.enable_thinking else ""
    return thought + case.answer, "stop"


class Scripted(Engine):
    """Says what it is told to of `cases`, and is sure of whatever token comes next by 20 nats. Keeps what is asked.

    `endings`: what is said to requests whose keys end so.
    """

    identity = IDENTITY

    def __init__(
        self,
        tokenizer: Any,
        cases: Sequence[Case],
        said: Said = right,
        endings: Mapping[str, Said] | None = None,
    ) -> None:
        self.tokenizer, self._said = tokenizer, {**(endings or {}), "": said}
        self._cases = {
            tuple(tokenizer.encode(rendered(case, tokenizer), add_special_tokens=False)): case for case in cases
        }
        self._end = tokenizer.eos_token_id
        self.asked: list[GenerationRequest] = []
        self.scored: list[ScoreRequest] = []

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        self.asked += requests
        for request in requests:
            if request.key not in known:
                said = next(said for ending, said in self._said.items() if request.key.endswith(ending))
                text, reason = said(self._cases[request.token_ids])
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                error = "engine: out of memory" if reason == "error" else None
                end = self._end if reason == "stop" else None
                yield Generated(request, ids, text, reason, error=error, end_id=end, rows=1)

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        self.scored += requests
        for request in requests:
            if request.key not in known:
                yield Scored(request, torch.tensor(request.token_ids[request.first :], dtype=torch.float32)[:, None])

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return 20.0 * torch.nn.functional.one_hot(hidden_states[:, 0].long(), len(self.tokenizer)).float()

    def output_head(self) -> OutputHead:
        raise AssertionError("only a divergence needs the head")


def gated(
    specs: Sequence[CanarySpec],
    tokenizer: Any,
    place: Path,
    reference: Said = right,
    branch: Said = right,
    *,
    endings: Mapping[str, Said] | None = None,
    items: Sequence[ItemOutcome] = (),
) -> Told:
    """A run of scripted answers to every question of these canaries; `endings` are those of the branch."""
    cases = [case for spec in specs for case in cases_of(spec)]
    theirs, ours = Scripted(tokenizer, cases, reference), Scripted(tokenizer, cases, branch, endings)
    told = run_of(CanaryProbe(specs), ours, place, theirs, items=items)
    told.asked = ours.asked
    return told
