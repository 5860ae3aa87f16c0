"""Captures a reference: requests the answers missing from every capture, and stores each as it arrives."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

from q36eval.engines.base import Engine, GenerationRequest, ScoreRequest
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.locks import exclusive
from q36eval.probes import Digest, Probe, Progress, WorkItem
from q36eval.records import ProbeName
from q36eval.references import Capture, cannot_write, captures_in
from q36eval.run.items import SECOND, Work, finished_items, first_key, followed_up, refuse_unanswerable, second_items
from q36eval.run.memory_report import batches_line

PASSES = "passes"
"""The folder next to the captures with resumable long computations of an engine."""

_NOT_REQUESTED = ("key", "group", "shared", "likeliest", "whole")
"""Fields of a request that are names, or that describe what it shares with others or how much of its answer is read."""

Wanted = Sequence[tuple[Work, Sequence[WorkItem]]]
"""Items of each probe that the reference has to answer."""


def requested_sha256(item: WorkItem) -> str:
    """Hash of everything that an item requests from an engine: token ids and the settings of the answer."""
    requests: list[ScoreRequest | GenerationRequest] = [*item.scores, *item.generations]
    requested = [
        [(field.name, getattr(request, field.name)) for field in fields(request) if field.name not in _NOT_REQUESTED]
        for request in requests
    ]
    return hashlib.sha256(repr(requested).encode()).hexdigest()


class ReferenceAnswers(Mapping[ProbeName, Capture]):
    """The reference's answers to the items of `works`, by probe: from captures if present, else captured now.

    `answer` has the reference answer the items needed next, so that it answers no more items than the branch. Requests
    of different stages, tasks or blocks never share a batch, so its answers do not depend on the order of these calls.
    A capture of all its probe's items is sealed; every answer is stored as it arrives, for the next run or process to
    reuse. `seconds` is the time spent here.
    """

    def __init__(
        self,
        works: Sequence[Work],
        open_capture: Callable[[Probe], Capture],
        load_reference: Callable[[], Engine] | None,
        progress: Progress,
        *,
        keep_head: bool = True,
        one_at_a_time: bool = False,
    ) -> None:
        """`load_reference` is None if only a pack is available, which must hold all items.

        With `one_at_a_time` the device cannot hold branch and reference: evaluating the reference unloads the branch.

        Raises:
            UsageError: the pack lacks items.
        """
        self.one_at_a_time = one_at_a_time
        self.seconds = 0.0
        self.first: dict[ProbeName, list[str]] = {}
        """The keys of all items that the reference answered before the branch began their stage, by probe."""
        self.progress = progress
        self._open, self._load, self._keep_head = open_capture, load_reference, keep_head
        self._announced = False
        self._planned = {work.probe.name: list(work.items) for work in works}
        self._captures = {work.probe.name: open_capture(work.probe) for work in works}
        self._answered: dict[ProbeName, dict[str, WorkItem]] = {work.probe.name: {} for work in works}
        if load_reference is None:
            for work in works:
                self._check_whole(work)

    def __getitem__(self, name: ProbeName) -> Capture:
        return self._captures[name]

    def __iter__(self) -> Iterator[ProbeName]:
        return iter(self._captures)

    def __len__(self) -> int:
        return len(self._captures)

    def asked(self, name: ProbeName) -> Mapping[str, WorkItem]:
        """The items that the reference has answered so far, by key, in the form for a branch with its chat template:
        including follow-ups of the reference's answers."""
        return self._answered[name]

    def answer(self, wanted: Wanted) -> None:
        """Have the reference answer these items and their follow-ups; each is requested once.

        Captured answers are only read. If some are missing, captures are locked and read again: another process may
        have captured them meanwhile.

        Raises:
            UsageError: the reference cannot be used, or an item was captured with other tokens than it has now.
        """
        started = time.monotonic()
        fresh = []
        for work, items in wanted:
            known = self._answered[work.probe.name]
            of_reference = {item.key: item for item in self._planned[work.probe.name]}
            new = [of_reference[item.key] for item in items if item.key not in known]
            if new and work.failed is None:
                fresh.append(Work(work.probe, new))
        if self._load is not None:
            self._capture(fresh, self._load)
        for work in fresh:
            capture = self._captures[work.probe.name]
            second = second_items(work, capture)
            _check_tokens(capture, [*work.items, *second])
            self._answered[work.probe.name] |= {item.key: item for item in followed_up(work.items, second)}
        self.seconds += time.monotonic() - started

    def _capture(self, works: Sequence[Work], load: Callable[[], Engine]) -> None:
        """Capture the missing items, by one process at a time."""
        absent = self._unfinished(works)
        if not absent:
            return
        count = sum(len(work.todo) for work in absent)
        probes = {work.probe.name: work.probe for work in absent}.values()  # several works may be stages of one
        with ExitStack() as locks:
            # always in the same order, to avoid deadlocks
            for path in sorted(self._captures[probe.name].lock_file for probe in probes):
                waiting = partial(self.progress.stage, "waiting for another run to capture the reference", count)
                try:
                    locks.enter_context(exclusive(path, waiting))
                except OSError as error:
                    raise cannot_write(path.parent, error) from error
            for probe in probes:
                capture = self._captures[probe.name] = self._open(probe)
                _adopt_parts(Work(probe, self._planned[probe.name]), capture)
            absent = self._unfinished(absent)
            if any(work.todo or _missing_second(work, self._captures[work.probe.name]) for work in absent):
                try:
                    engine = load()
                    self._announce(engine)
                    capture_reference(engine, absent, self._captures, self.progress, self._keep_head)
                except CorruptCheckpointError as error:  # its layers are decoded during the evaluation
                    raise UsageError(error.code, f"The reference cannot be used: {error}") from error
            for probe in probes:  # sealed once the reference has answered the whole plan
                capture, planned = self._captures[probe.name], self._planned[probe.name]
                if all(item.key in capture for item in planned):
                    capture.finish([item.key for item in [*planned, *second_items(Work(probe, planned), capture)]])

    def _announce(self, engine: Engine) -> None:
        """Report once the reference's batch limits."""
        plan = None if self._announced else engine.batches()
        if plan is not None:
            self.progress.note(f"The reference: {batches_line(plan)}")
        self._announced = True

    def _unfinished(self, works: Sequence[Work]) -> list[Work]:
        """The works whose captures lack these items or a possible seal; captured items are done."""
        unfinished = []
        for work in works:
            capture = self._captures[work.probe.name]
            known = Work(work.probe, work.items, done=frozenset(capture))
            sealable = capture.manifest is None and len(work.items) == len(self._planned[work.probe.name])
            if known.todo or sealable or _missing_second(work, capture):
                unfinished.append(known)
        return unfinished

    def _check_whole(self, work: Work) -> None:
        capture = self._captures[work.probe.name]
        lacking = {item.key for item in work.items if item.key not in capture}
        lacking |= {first_key(item.key) for item in second_items(work, capture) if item.key not in capture}
        if lacking:
            raise UsageError(
                "pack-lacks-items",
                f"The reference pack's {capture.folder} lacks {len(lacking)} of the {len(work.items)} items "
                f"of this run; capture it with this version of q36eval.",
            )
        _check_tokens(capture, [*work.items, *second_items(work, capture)])


def capture_reference(
    engine: Engine,
    works: Sequence[Work],
    captures: Mapping[ProbeName, Capture],
    progress: Progress,
    keep_head: bool = True,
) -> None:
    """Capture the digests of all items in `works`, each written immediately, then those of the second steps.

    Errored items are left out, to be requested again next time.
    """
    refuse_unanswerable(engine.generates, works, "reference")
    folder = next(iter(captures.values())).folder.parent / PASSES
    engine.keep_in(folder, progress.within)
    engine.report_to(progress.note)
    for work in works:
        capture = captures[work.probe.name]
        if work.probe.kind == "hidden-states" and not capture.has_shared:
            capture.share(work.probe.shared_tensors(engine), keep=keep_head)
    progress.stage("capturing the reference", sum(len(work.todo) for work in works))
    for work, item, results in finished_items(engine, works):
        if results.error is None:
            _keep(captures[work.probe.name], item, work.probe.digest(engine, item, results))
        progress.advance()
    for work in works:
        _capture_second(engine, work, captures[work.probe.name], progress)


def _capture_second(engine: Engine, work: Work, capture: Capture, progress: Progress) -> None:
    """The second steps of a probe, captured like the first."""
    probe = work.probe
    if not probe.follows_up:
        return
    first = {item.key: item for item in work.items}
    second = Work(probe, second_items(work, capture), done=frozenset(capture))
    progress.stage("scoring the reference's answers", len(second.todo))
    for _, item, results in finished_items(engine, [second]):
        if results.error is None:
            key = first_key(item.key)
            _keep(capture, item, probe.digest_follow_up(engine, first[key], capture[key], results))
        progress.advance()


def _keep(capture: Capture, item: WorkItem, digest: Digest) -> None:
    if digest.error is None:
        capture.add(item.key, digest, requested_sha256(item))


def _adopt_parts(work: Work, capture: Capture) -> None:
    """Copy digests from another capture of the same reference for identical parts of a suite.

    So adding a custom canary costs the reference only its own answers, not those of all others again.
    """
    probe, header = work.probe, capture.header
    if len(capture):
        return
    for folder, other, _ in captures_in(capture.folder.parent):
        alike = (other.probe, other.identity, other.kind) == (header.probe, header.identity, header.kind)
        if folder == capture.folder or not alike:
            continue
        parts = {name for name, value in probe.suite_fields.items() if value and other.suite.get(name) == value}
        wanted = [item.key for item in work.items if probe.part_of(item.key) in parts and item.key not in capture]
        if wanted:
            held = Capture(
                folder.parent, other.identity, other.probe, other.suite_sha256, other.kind, suite=other.suite
            )
            for key in (key for first in wanted for key in (first, first + SECOND) if key in held):
                capture.add(key, held[key], held.asked(key))


def _missing_second(work: Work, capture: Capture) -> bool:
    return any(item.key not in capture for item in second_items(work, capture))


def _check_tokens(capture: Capture, items: Sequence[WorkItem]) -> None:
    """Refuse answers to other tokens: a library may tokenize a text differently than at capture time."""
    others = [item for item in items if item.key in capture and capture.asked(item.key) != requested_sha256(item)]
    if others:
        raise UsageError(
            "capture-tokens-differ",
            f"The capture {capture.folder} holds {len(others)} of {len(items)} items in other tokens than they have "
            f"here; delete it and capture again with this machine's libraries, or use the original ones.",
        )
