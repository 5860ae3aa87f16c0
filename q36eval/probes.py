"""The contract between a probe and the runner.

A probe lists work items (the same for reference and branch), reduces the reference's results to a digest that is kept
and reused, compares the branch's results with that digest one item at a time, and summarises outcomes as measurements.
All three steps are pure, so a killed run resumes from the outcomes already in history.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from q36eval.declared import DeclaredFigure
from q36eval.engines.base import Engine, Generated, GenerationRequest, Scored, ScoreRequest
from q36eval.records import ItemOutcome, Measurement, ProbeName

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


class Probe(Protocol):
    """One way of judging."""

    @property
    def name(self) -> ProbeName: ...

    @property
    def suite_sha256(self) -> str:
        """Content hash of everything this probe asks and of how it reads the answers."""
        ...

    def plan(self, tokenizer: Any) -> Sequence[WorkItem]: ...

    def digest(self, engine: Engine, item: WorkItem, results: ItemResults) -> Digest:
        """Reduce the reference's results to what is kept. Errors are never passed here."""
        ...

    def compare(self, engine: Engine, item: WorkItem, results: ItemResults, reference: Digest) -> Sequence[ItemOutcome]:
        """Judge the branch's results of one item; `results.error` or `reference.error` become errored answers."""
        ...

    def summarize(self, outcomes: Sequence[ItemOutcome]) -> Iterator[Measurement]:
        """Measurements over all outcomes of this probe, with intervals and counts."""
        ...


@runtime_checkable
class Declares(Protocol):
    """A probe that can say what `summarize` will yield, so that a policy is refused before anything is measured."""

    def declared(self) -> Sequence[DeclaredFigure]:
        """One for each measurement once all is evaluated without an error; after `plan` with every count known."""
        ...


@runtime_checkable
class KnowsReference(Protocol):
    """A probe that counts what can be learnt of a branch by what the reference answers to all that is planned."""

    def know_reference(self, items: Sequence[WorkItem], digests: Mapping[str, Digest]) -> Sequence[WorkItem]:
        """Hear the reference's digests by item key, once all are captured and before the branch is evaluated.

        Returns the same items; their blocks may be laid out anew by what the reference answered, and by nothing else.
        An item whose digest is missing or errored is one that the reference could not be measured on.
        """
        ...


@runtime_checkable
class InRounds(Protocol):
    """A probe whose tasks may be settled before every item was asked."""

    def look(self, outcomes: Sequence[ItemOutcome], keys: Collection[str]) -> Sequence[Measurement]:
        """The measurements of those keys from the outcomes so far; keys that have none yet are left out."""
        ...

    def tasks_of(self, key: str) -> frozenset[str]:
        """The tasks whose items that measurement is taken from."""
        ...

    def lossless(self, item: WorkItem, reference: Digest) -> ItemOutcome:
        """The outcome of an item to which the branch answers just what the reference answered."""
        ...


@dataclass(frozen=True)
class FollowUp:
    """What is asked about one item once the reference has answered it.

    `scores` is asked of both deployments; `repeats` of the reference alone: the same question in other batches.
    """

    scores: tuple[ScoreRequest, ...] = ()
    repeats: tuple[GenerationRequest, ...] = ()


@runtime_checkable
class FollowsUp(Protocol):
    """A probe that asks more about an item when it knows the reference's answer to it (teacher-forced on it, say).

    What it then learns of the reference is a second digest; `compare` is handed both as one.
    """

    def follow_up(self, item: WorkItem, first: Digest) -> FollowUp:
        """Depends on the item and on the reference's first digest alone."""
        ...

    def digest_follow_up(self, engine: Engine, item: WorkItem, first: Digest, results: ItemResults) -> Digest:
        """Reduce the reference's results of a follow-up; its values and tensors have names of their own."""
        ...


@runtime_checkable
class Confirms(Protocol):
    """A probe whose gravest outcomes count only when the branch shows them in other batches too."""

    def doubtful(self, outcomes: Sequence[ItemOutcome]) -> Sequence[WorkItem]:
        """What to ask the branch again, by the keys of their items; nothing that was confirmed or refuted before."""
        ...

    def confirmed(self, item: WorkItem, results: ItemResults, outcome: ItemOutcome) -> ItemOutcome:
        """The outcome, with what the branch answered when it was asked again."""
        ...


@runtime_checkable
class RepeatsReference(Protocol):
    """A probe that asks the reference some things more than once, and so knows how often an engine changes a score."""

    def reference_repeats(self, outcomes: Sequence[ItemOutcome]) -> tuple[int, int]:
        """How many of the reference's repeated answers have another score than the first, and how many there are."""
        ...


@runtime_checkable
class SharesTensors(Protocol):
    """A probe whose reference digests share tensors (a head, say): kept once, and present in every digest."""

    def shared_tensors(self, engine: Engine) -> "dict[str, torch.Tensor]": ...


@runtime_checkable
class KeepsFiles(Protocol):
    """A probe that keeps more of a run than history holds (every token's figures, say), in a folder of that run."""

    def keep_in(self, folder: Path) -> None:
        """Told before anything is compared; a resumed run names the folder it named before."""
        ...


@runtime_checkable
class TellsSuite(Protocol):
    """A probe that can say what its `suite_sha256` is made of, so that a refusal can name what differs."""

    @property
    def suite_fields(self) -> dict[str, str]:
        """By name: hashes, or numbers as text; empty text where there is none of it."""
        ...


@runtime_checkable
class HasParts(TellsSuite, Protocol):
    """A suite of parts that are asked apart: what a part's items are answered does not depend on the other parts."""

    def part_of(self, key: str) -> str:
        """The field of `suite_fields` that stands for the part which the item of that key belongs to."""
        ...


@runtime_checkable
class KeepsTopK(Protocol):
    """A probe that keeps of each position the `top_k` likeliest tokens and the mass of the rest."""

    @property
    def top_k(self) -> int: ...
