"""The contract between a probe and a run: what a probe plans, digests, compares and summarises; where it reports.

A probe lists work items (the same for reference and branch), reduces the reference's results to a digest that is kept
and reused, compares the branch's results with that digest one item at a time, and summarises outcomes as measurements.
All three steps are pure, so a killed run resumes from the outcomes already in history.

To write one: derive from `Probe` and implement its four abstract methods; everything else has a default that works.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    """One item: what must be scored and generated before it can be judged. `key` is a content hash of what is asked.

    Items are asked stage by stage, in the order in which a probe plans its stages, and within a stage in rounds, those
    of `block` n in round n, until the `task` they belong to is settled. Requests of different stages, tasks or blocks
    never share a batch, so no number depends on where the asking stopped. One without requests cannot be asked; its
    probe says why.
    """

    key: str
    scores: tuple[ScoreRequest, ...] = ()
    generations: tuple[GenerationRequest, ...] = ()
    task: str = ""
    block: int = 0
    stage: str = ""

    @property
    def tokens(self) -> int:
        """Tokens that are read for it, and at most generated."""
        written = sum(len(request.token_ids) + request.max_new_tokens for request in self.generations)
        return written + sum(len(request.token_ids) for request in self.scores)


@dataclass(frozen=True)
class ItemResults:
    """The engine's results of one item, keyed by request key."""

    scored: Mapping[str, Scored] = field(default_factory=dict)
    generated: Mapping[str, Generated] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """What the engine took for them all."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return sum(result.seconds for result in results)

    @property
    def repeated_seconds(self) -> float:
        """What the engine took, beside that, for requests in their batches whose results were known before."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return sum(result.repeated_seconds for result in results)

    @property
    def error(self) -> str | None:
        """The first engine error among the results, if any."""
        results: list[Scored | Generated] = [*self.scored.values(), *self.generated.values()]
        return next((result.error for result in results if result.error is not None), None)


@dataclass(frozen=True)
class Digest:
    """What is kept of one deployment's results for one item: JSON values, and tensors where a probe needs them."""

    values: dict[str, Any] = field(default_factory=dict)
    tensors: "dict[str, torch.Tensor]" = field(default_factory=dict)
    error: str | None = None


Captures = Mapping[ProbeName, Mapping[str, Digest]]
"""What is captured of the reference, by probe and item key."""

Kind = Literal["hidden-states", "answers"]
"""What a capture keeps of each item: final hidden states under one shared head, from which logits of the whole
vocabulary are rebuilt, or a short digest of the answers."""


@dataclass(frozen=True)
class FollowUp:
    """What is requested about one item once the reference has answered it.

    `scores` is requested of both deployments; `repeats` of the reference alone: the same question in other batches.
    """

    scores: tuple[ScoreRequest, ...] = ()
    repeats: tuple[GenerationRequest, ...] = ()


@dataclass(frozen=True)
class OwnPrompts:
    """The items as a branch gets them whose chat template is not the reference's; their keys are what they were.

    Of `prompts` that a template writes, `differing` have other token ids than the reference's, and `unwritten` are
    those that the branch's template does not write: they have no requests. `first` names the first that differs, with
    the reference's text and the branch's.
    """

    items: Sequence[WorkItem]
    prompts: int = 0
    differing: int = 0
    unwritten: int = 0
    first: tuple[str, str, str] | None = None


class Probe(ABC):
    """One way of judging a branch against its reference.

    A subclass sets `name` and `suite_sha256`, the content hash of everything that it evaluates and of how it reads the
    answers, and implements `plan`, `digest`, `compare` and `summarize`.
    """

    name: ProbeName
    suite_sha256: str
    suite_fields: Mapping[str, str] = {}
    """What `suite_sha256` is made of, so that a refusal can name what differs: hashes, or numbers as text, by name;
    empty text where there is none of it."""

    measured_on: Mapping[str, MeasuredOn] = {}
    """What the figures of each slice are measured on, where the probe knows it better than its request."""

    not_judged: Sequence[str] = ()
    """For people: what is left out because of the models' chat template, and why."""

    kind: ClassVar[Kind] = "answers"
    follows_up: ClassVar[bool] = False
    """Whether the class has a `follow_up` of its own. Where not, no digest is read for it."""
    does_without_scores: ClassVar[bool] = False
    """Whether an item that is answered is judged without its scores too, and only less is known of it."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.follows_up = cls.follow_up is not Probe.follow_up

    @abstractmethod
    def plan(self, tokenizer: Any) -> Sequence[WorkItem]:
        """Everything that is evaluated, tokenized as the reference's tokenizer does."""

    @abstractmethod
    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """Reduce the reference's results to what is kept. Errors are never passed here."""

    @abstractmethod
    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> Sequence[ItemOutcome]:
        """Judge the branch's results of one item; `results.error` or `reference.error` become errored answers."""

    @abstractmethod
    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """Measurements over all outcomes of this probe, with intervals and counts."""

    def declared(self) -> Sequence[DeclaredFigure] | None:
        """What `summarize` yields once all is evaluated without an error; after `plan` with every count known.

        None where the probe cannot say: then no policy is refused for it beforehand.
        """
        return None

    def answered_first(self, items: Sequence[WorkItem]) -> Sequence[WorkItem]:
        """Which of these items of one stage the reference answers before the branch is asked any of them: all of them.

        A probe may name fewer, in whole blocks: then the reference answers the others as the branch comes to them.
        """
        return items

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Receive the reference's digests by item key of all that `answered_first` names of the stages begun so far;
        called as a stage begins, before the branch is asked any of it.

        Returns the same items; their blocks may be laid out anew by what the reference answered, and by nothing else.
        A digest with an error is one of an item that the reference could not be measured on.
        """
        return items

    def in_own_template(self, items: Sequence[WorkItem], tokenizer: Any) -> OwnPrompts:
        """The items as the branch gets them, their prompts written by `tokenizer`, its own.

        As they are where no template writes them: texts, and the reference's own answers, are scored on the same
        token ids. An item that either template does not write is errored in `compare`, never wrong.
        """
        return OwnPrompts(items)

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> Sequence[Measurement]:
        """The measurements of those keys from the outcomes so far; keys that have none yet are left out."""
        return ()

    def tasks_of(self, key: str) -> frozenset[str]:
        """The tasks whose items that measurement is taken from, which a clear result may end early; none by default."""
        return frozenset()

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome | None:
        """The outcome of an item to which the branch answers just what the reference answered; None where unknown."""
        return None

    def follow_up(self, item: WorkItem, first: Digest) -> FollowUp:
        """More requests about an item, from the item and the reference's first digest alone."""
        return FollowUp()

    def digest_follow_up(self, engine: Engine, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        """Reduce the reference's results of a follow-up; its values and tensors have names of their own.

        `compare` receives both digests as one.
        """
        raise NotImplementedError(f"the {self.name} probe requests follow-ups and does not digest them")

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> Sequence[WorkItem]:
        """Grave outcomes that count only when the branch shows them in other batches too: what to request again.

        By the keys of their items; nothing that was confirmed or refuted before.
        """
        return ()

    def confirmed(self, item: WorkItem, results: ItemResults, outcome: ItemOutcome) -> ItemOutcome:
        """The outcome, with what the branch answered in the other batch."""
        return outcome

    def reference_repeats(self, outcomes: Sequence[ItemOutcome]) -> tuple[int, int]:
        """Of the reference's repeated answers, how many have another score than the first, and how many there are."""
        return 0, 0

    def shared_tensors(self, engine: Engine) -> "dict[str, torch.Tensor]":
        """Tensors that all digests of the reference share (its head, say): kept once, present in every digest."""
        return {}

    def keep_in(self, folder: Path) -> None:  # noqa: B027 - most probes keep no files
        """Receive the folder for files of this run before anything is compared; a resumed run names the same again."""

    def part_of(self, key: str) -> str:
        """The field of `suite_fields` for the part of the suite which that item belongs to; empty without parts.

        Parts are evaluated apart: what one's items are answered does not depend on the others.
        """
        return ""


class Sink:
    """Where outcomes, measurements and failures go at once. This one keeps nothing."""

    def add_items(self, outcomes: Sequence[ItemOutcome]) -> None:
        """Outcomes of one or more items."""

    def add_measurement(self, measurement: Measurement) -> None:
        """One figure; a later one of the same key replaces it."""

    def add_failure(self, failure: ProbeFailure) -> None:
        """Why a probe, or a part of it, was not measured."""

    def known_items(self) -> Sequence[ItemOutcome]:
        """Outcomes already written, when a run is resumed."""
        return ()


class Progress:
    """What a run reports while it works. This one is silent; override what is to be shown."""

    def stage(self, title: str, total: int) -> None:
        """A stage of `total` items begins."""

    def advance(self, count: int = 1) -> None:
        """`count` items of the current stage are done."""

    def expect(self, task: str, tokens: int) -> None:
        """So many more tokens of a task are ahead in this stage."""

    def worked(self, task: str, tokens: int, seconds: float) -> None:
        """So many of them are done, in so many seconds of the engine's work."""

    def dropped(self, task: str, tokens: int) -> None:
        """So many of them need not be evaluated after all."""

    def within(self, what: str, done: int, total: int) -> None:
        """So many steps are done of something that all items wait for, such as the layers of a pass."""

    def note(self, sentence: str) -> None:
        """What a person should know of how the work is done."""

    def retried(self, count: int, error: str) -> None:
        """So many requests errored, one of them with these words, and are requested again."""


class Within(Progress):
    """Tells of stages as steps of the stage that `progress` is in, which waits for them."""

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
    """The item with its requests kept apart from other probes', stages', tasks' and blocks'; a probe may part further.

    So one probe alone gives what it gives among others, and one block what it gives among all.
    """
    group = _below(probe, item.stage)
    group = f"{group}/{item.task}/{item.block}" if item.task else group
    return replace(
        item,
        scores=tuple(replace(request, group=_below(group, request.group)) for request in item.scores),
        generations=tuple(replace(request, group=_below(group, request.group)) for request in item.generations),
    )


def in_block(item: WorkItem, block: int, probe: str) -> WorkItem:
    """An item that `in_group` kept apart, laid into another block: its requests go with the others of that block."""
    if item.block == block:
        return item
    stem = f"{_below(probe, item.stage)}/{item.task}"
    old, new = f"{stem}/{item.block}", f"{stem}/{block}"
    return replace(
        item,
        block=block,
        scores=tuple(replace(request, group=new + request.group.removeprefix(old)) for request in item.scores),
        generations=tuple(
            replace(request, group=new + request.group.removeprefix(old)) for request in item.generations
        ),
    )


def _below(group: str, own: str) -> str:
    return f"{group}/{own}" if own else group
