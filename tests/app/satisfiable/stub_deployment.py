"""A deployment that knows the right answers: what it is asked by real probes it answers right, but for its faults."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from q36eval.engines.base import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.engines.logits import OutputHead
from q36eval.probes import Probe, Progress
from q36eval.records import DeploymentIdentity, ItemOutcome, Measurement
from q36eval.references import Capture
from q36eval.run.capture import ReferenceAnswers
from q36eval.run.items import Work
from q36eval.run.rounds import run_probes
from tests.q36eval.run.runner import MemorySink

SCALE = 12.0
"""Logit of the token that comes next: likely, and not so certain that nothing could be lost."""
WIDTH = 48
LONG_CHARACTERS, KEPT_CHARACTERS = 4_000, 500


class Abridging:
    """A tokenizer that reads of a very long prompt its two ends: nobody here looks at what stands between them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, **settings: Any) -> list[int]:
        if len(text) > LONG_CHARACTERS:
            text = text[:KEPT_CHARACTERS] + text[-KEPT_CHARACTERS:]
        return list(self._tokenizer.encode(text, **settings))

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._tokenizer(*arguments, **settings)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@dataclass(frozen=True)
class RightAnswers:
    """What is right: texts by the key of a generation, tokens of the right choice by the key of a score request."""

    texts: Mapping[str, str]
    choices: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fault:
    """What a deployment does wrong, and the items that this concerns.

    `texts` and `choices` stand in the place of the right ones; `states` changes the final hidden states of a request.
    """

    items: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    states: "Callable[[ScoreRequest, torch.Tensor], torch.Tensor] | None" = None


class StubDeployment(Engine):
    """The state before a token is that token's code, so that what comes next is likely."""

    identity = DeploymentIdentity(
        checkpoint_sha256="c" * 64,
        tokenizer_sha256="t" * 64,
        chat_template_sha256="h" * 64,
        engine="stub",
        engine_version="1",
    )

    def __init__(self, tokenizer: Any, right: RightAnswers, fault: Fault | None = None) -> None:
        self.tokenizer, self.right, self._fault = tokenizer, right, fault or Fault()
        codes = torch.randn(len(tokenizer), WIDTH, generator=torch.Generator().manual_seed(11))
        self._codes = codes / codes.norm(dim=1, keepdim=True)
        self._encoded: dict[str, tuple[int, ...]] = {}

    def generate(self, requests: Sequence[GenerationRequest], known: Collection[str] = ()) -> Iterator[Generated]:
        for request in requests:
            if request.key not in known:
                # a prompt that is asked again has the key of its item before the ending
                key = request.key if request.key in self.right.texts else request.key.split("/")[0]
                text = self._fault.texts.get(key, self.right.texts[key])
                if text not in self._encoded:
                    self._encoded[text] = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                ids = self._encoded[text]
                over = len(ids) > request.max_new_tokens
                yield Generated(
                    request,
                    ids[: request.max_new_tokens],
                    text,
                    "length" if over else "stop",
                    end_id=None if over else self.tokenizer.eos_token_id,
                    rows=1,
                )

    def score(self, requests: Sequence[ScoreRequest], known: Collection[str] = ()) -> Iterator[Scored]:
        for request in requests:
            if request.key not in known:
                said = list(request.token_ids[request.first :])
                right = self._fault.choices.get(request.key, self.right.choices.get(request.key, ()))
                said[len(said) - len(right) :] = right
                before = list(request.token_ids[request.first - 1 : -1])
                states = SCALE * self._codes[said] + self._codes[before]
                yield Scored(request, states if self._fault.states is None else self._fault.states(request, states))

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states.float() @ self._codes.T

    def output_head(self) -> OutputHead:
        return OutputHead(self._codes)


def right_answers(probes: Sequence[Any]) -> RightAnswers:
    """The right answers to all that the probes have planned, as their questions state them."""
    texts: dict[str, str] = {}
    choices: dict[str, tuple[int, ...]] = {}
    for probe in probes:
        for key, question in getattr(probe, "_questions", {}).items():
            case = question.case
            texts[key] = ("</think>\n\n" if case.generation.enable_thinking else "") + case.answer
        for document, encoded in getattr(probe, "_encoded", {}).values():
            for number, reading in enumerate(encoded.readings):
                if reading.generation_key is not None:
                    target = document.target
                    texts[reading.generation_key] = " " + (", ".join(target) if isinstance(target, list) else target)
                elif document.choices and number == document.target:
                    choices |= {piece.request_key: piece.token_ids for piece in reading.pieces}
    return RightAnswers(texts, choices)


# -- evidence by real probe code, through the real runner: what the stub answers is all that is made up


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
