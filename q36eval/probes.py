"""The contract between a probe and a run: a probe plans, digests, compares and summarises; also its output sinks.

A probe lists work items (the same for reference and branch), reduces the reference's results to a digest that is stored
and reused, compares the branch's results with that digest one item at a time, and summarises outcomes as measurements.
All these steps are pure, so a killed run resumes from the outcomes already in history.

To write one: derive from `Probe` and implement its four abstract methods; everything else has a working default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from q36eval.engines.base import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.measurement_facts import MeasuredOn
from q36eval.metrics import DeclaredFigure
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class WorkItem:
    """One item: its requests to score and generate. `key` is a content hash of the requests.

    Items are evaluated stage by stage, in the order in which a probe plans its stages, and within a stage in rounds,
    those of `block` n in round n, until their `task` is resolved. Requests of different stages, tasks or blocks never
    share a batch, so no number depends on where the evaluation stopped. An item without requests cannot be evaluated;
    its probe gives the reason.
    """

    key: str
    scores: tuple[ScoreRequest, ...] = ()
    generations: tuple[GenerationRequest, ...] = ()
    task: str = ""
    block: int = 0
    stage: str = ""

    @property
    def tokens(self) -> int:
        """Its prompt tokens, and the maximum of generated tokens."""
        written = sum(len(request.token_ids) + request.max_new_tokens for request in self.generations)
        return written + sum(len(request.token_ids) for request in self.scores)


@dataclass(frozen=True)
class ItemResults:
    """The engine's results of one item, keyed by request key."""

    scored: Mapping[str, Scored] = field(default_factory=dict)
    generated: Mapping[str, Generated] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The engine's time for all of them."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return sum(result.seconds for result in results)

    @property
    def repeated_seconds(self) -> float:
        """The engine's additional time for requests in their batches whose results were already known."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return sum(result.repeated_seconds for result in results)

    @property
    def error(self) -> str | None:
        """The first engine error among the results, if any."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return next((result.error for result in results if result.error is not None), None)


@dataclass(frozen=True)
class Digest:
    """The stored part of one deployment's results for one item: JSON values, and tensors if a probe needs them."""

    values: dict[str, Any] = field(default_factory=dict)
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    error: str | None = None


Captures = Mapping[ProbeName, Mapping[str, Digest]]
"""The captured digests of the reference, by probe and item key."""

Kind = Literal["hidden-states", "answers"]
"""The contents of a capture per item: final hidden states with one shared head, from which logits of the whole
vocabulary are rebuilt, or a short digest of the answers."""


@dataclass(frozen=True)
class FollowUp:
    """Further requests about one item after the reference has answered it.

    `scores` is requested from both deployments; `repeats` only from the reference: the same question in other batches.
    """

    scores: tuple[ScoreRequest, ...] = ()
    repeats: tuple[GenerationRequest, ...] = ()


@dataclass(frozen=True)
class OwnPrompts:
    """The items for a branch whose chat template differs from the reference's; their keys are unchanged.

    Of the `prompts` rendered by a template, `differing` have other token ids than the reference's, and `unwritten` are
    those that the branch's template does not render: they have no requests. `first` is the first difference, with the
    reference's text and the branch's.
    """

    items: Sequence[WorkItem]
    prompts: int = 0
    differing: int = 0
    unwritten: int = 0
    first: tuple[str, str, str] | None = None


class Probe(ABC):
    """One method of judging a branch against its reference.

    A subclass sets `name` and `suite_sha256`, the content hash of its items and of its rules for reading answers, and
    implements `plan`, `digest`, `compare` and `summarize`.
    """

    name: ProbeName
    suite_sha256: str
    suite_fields: Mapping[str, str] = {}
    """The inputs of `suite_sha256`, so that a refusal can name the difference: hashes, or numbers as text, by name;
    empty text for a missing one."""

    measured_on: Mapping[str, MeasuredOn] = {}
    """The evaluated data of each slice, if the probe knows it better than its request."""

    not_judged: Sequence[str] = ()
    """For people: items left out because of the models' chat template, with the reason."""

    kind: ClassVar[Kind] = "answers"
    follows_up: ClassVar[bool] = False
    """Whether the class implements `follow_up`. If not, no digest is read for it."""
    does_without_scores: ClassVar[bool] = False
    """Whether an answered item is judged even without its scores, with less detail."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.follows_up = cls.follow_up is not Probe.follow_up

    @abstractmethod
    def plan(self, tokenizer: Any) -> Sequence[WorkItem]:
        """All items, tokenized by the reference's tokenizer."""

    @abstractmethod
    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """Reduce the reference's results to the stored digest. Errors are never passed here."""

    @abstractmethod
    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> Sequence[ItemOutcome]:
        """Judge the branch's results of one item; `results.error` or `reference.error` become errored answers."""

    @abstractmethod
    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """Measurements over all outcomes of this probe, with intervals and counts."""

    def declared(self) -> Sequence[DeclaredFigure] | None:
        """The figures that `summarize` yields if everything is evaluated without error; after `plan` with all counts.

        None if the probe does not know: then no policy is refused in advance because of it.
        """
        return None

    def answered_first(self, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
        """The items of one stage that the reference answers before the branch is evaluated on any: all of them.

        A probe may return fewer, in whole blocks: the reference then answers the others when the branch reaches them.
        """
        return items

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Receive the reference's digests, by item key, of everything in `answered_first` for the stages begun so far;
        called as a stage begins, before the branch is evaluated on it.

        Returns the same items; their blocks may be rearranged by the reference's answers, and by nothing else. A digest
        with an error belongs to an item on which the reference was not measured.
        """
        return items

    def in_own_template(self, items: Sequence[WorkItem], tokenizer: Any) -> OwnPrompts:
        """The items for the branch, with prompts rendered by `tokenizer`, its own.

        Items without a template are unchanged: texts, and the reference's own answers, are scored on the same token
        ids. An item that either template does not render is errored in `compare`, never wrong.
        """
        return OwnPrompts(items)

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> Sequence[Measurement]:
        """The measurements with those keys from the outcomes so far; keys without a measurement yet are left out."""
        return ()

    def tasks_of(self, key: str) -> frozenset[str]:
        """The tasks whose items that measurement uses, which a clear result may end early; none by default."""
        return frozenset()

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome | None:
        """The outcome of an item if the branch answered exactly like the reference; None if unknown."""
        return None

    def follow_up(self, item: WorkItem, first: Digest) -> FollowUp:
        """Further requests about an item, determined by the item and the reference's first digest alone."""
        return FollowUp()

    def digest_follow_up(self, engine: Engine, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        """Reduce the reference's results of a follow-up; its values and tensors have distinct names.

        `compare` receives both digests merged.
        """
        raise NotImplementedError(f"the {self.name} probe requests follow-ups and does not digest them")

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> Sequence[WorkItem]:
        """Severe outcomes that count only if the branch repeats them in other batches: the items to request again.

        Identified by their items' keys; outcomes already confirmed or refuted are not repeated.
        """
        return ()

    def confirmed(self, item: WorkItem, results: ItemResults, outcome: ItemOutcome) -> ItemOutcome:
        """The outcome, with the branch's answer in the other batch."""
        return outcome

    def reference_repeats(self, outcomes: Sequence[ItemOutcome]) -> tuple[int, int]:
        """The number of the reference's repeated answers with another score than the first, and their total."""
        return 0, 0

    def shared_tensors(self, engine: Engine) -> "dict[str, torch.Tensor]":
        """Tensors that all digests of the reference share (such as its head): stored once, present in every digest."""
        return {}

    def keep_in(self, folder: Path) -> None:  # noqa: B027 - most probes keep no files
        """Receive the folder for files of this run before any comparison; a resumed run passes the same one."""

    def part_of(self, key: str) -> str:
        """The field of `suite_fields` for the item's part of the suite; empty without parts.

        Parts are evaluated separately: answers in one do not depend on the others.
        """
        return ""


class Sink:
    """Receives outcomes, measurements and failures immediately. This one discards them."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        """Outcomes of one or more items."""

    def add_measurement(self, measurement: Measurement) -> None:
        """One figure; a later one of the same key replaces it."""

    def add_failure(self, failure: ProbeFailure) -> None:
        """Why a probe, or part of it, was not measured."""

    def known_items(self) -> Sequence[ItemOutcome]:
        """Outcomes already written, if a run is resumed."""
        return ()


class Progress:
    """A run's progress reports. This one is silent; override the methods to show."""

    def stage(self, title: str, total: int) -> None:
        """A stage of `total` items begins."""

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""

    def expect(self, task: str, tokens: int) -> None:
        """That many more tokens of a task are expected in this stage."""

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """That many of them are done, in that many seconds of the engine's work."""

    def dropped(self, task: str, tokens: int) -> None:
        """That many of them no longer need to be evaluated."""

    def within(self, what: str, done: int, total: int) -> None:
        """Progress of a step that all items wait for, such as the layers of a pass."""

    def note(self, sentence: str) -> None:
        """A note for a person on how the work is done."""

    def retried(self, count: int, error: str) -> None:
        """`count` requests errored, one of them with this message, and are requested again."""


class Within(Progress):
    """Reports stages as steps of the current stage of `progress`, which waits for them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._title, self._done, self._total = "", 0, 0

    def stage(self, title: str, total: int) -> None:
        self._title, self._done, self._total = title, 0, total
        self._progress.within(title, 0, total)

    def advance(self, count: int = 1) -> None:
        self._done += count
        self._progress.within(self._title, self._done, self._total)

    def within(self, what: str, done: int, total: int) -> None:
        if done < total:
            self._progress.within(f"{self._title} {self._done:,} of {self._total:,}, {what}", done, total)
        else:
            self.advance(0)

    def note(self, sentence: str) -> None:
        self._progress.note(sentence)

    def retried(self, count: int, error: str) -> None:
        self._progress.retried(count, error)


def in_group(item: WorkItem, probe: str) -> WorkItem:
    """The item with requests separated from other probes', stages', tasks' and blocks'; a probe may separate further.

    So a probe gives the same results alone and among others, and a block the same alone and among all.
    """
    group = _below(probe, item.stage)
    group = f"{group}/{item.task}/{item.block}" if item.task else group
    return _regrouped(item, lambda own: _below(group, own))


def in_block(item: WorkItem, block: int, probe: str) -> WorkItem:
    """An item from `in_group`, moved to another block: its requests are batched with that block's."""
    if item.block == block:
        return item
    stem = f"{_below(probe, item.stage)}/{item.task}"
    old, new = f"{stem}/{item.block}", f"{stem}/{block}"
    return replace(_regrouped(item, lambda own: new + own.removeprefix(old)), block=block)


def _regrouped(item: WorkItem, group: Callable[[str], str]) -> WorkItem:
    scores = tuple(replace(request, group=group(request.group)) for request in item.scores)
    generations = tuple(replace(request, group=group(request.group)) for request in item.generations)
    return replace(item, scores=scores, generations=generations)


def _below(group: str, own: str) -> str:
    return f"{group}/{own}" if own else group
