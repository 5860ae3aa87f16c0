"""Captures a reference: requests what no capture holds yet, and keeps every answer as it comes."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

from q36eval.engines.base import Engine, GenerationRequest, ScoreRequest
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.locks import exclusive
from q36eval.probes import Digest, Probe, Progress, WorkItem
from q36eval.records import ProbeName
from q36eval.references import Capture, cannot_write, captures_in
from q36eval.run.items import SECOND, Work, finished_items, first_key, followed_up, refuse_unanswerable, second_items
from q36eval.run.memory_report import batches_line

OpenCaptures = Mapping[ProbeName, Capture]


PASSES = "passes"
"""The folder beside captures from which long computations of an engine are resumed."""

_NOT_REQUESTED = ("key", "group", "shared", "likeliest", "whole")
"""Fields of a request that are names, or say what it has in common with others or how much of its answer is read."""


def requested_sha256(item: WorkItem) -> str:
    """Hash of everything that an item requests of an engine: token ids and how the answer is to be made."""
    requests: list[ScoreRequest | GenerationRequest] = [*item.scores, *item.generations]
    requested = [
        [(field.name, getattr(request, field.name)) for field in fields(request) if field.name not in _NOT_REQUESTED]
        for request in requests
    ]
    return hashlib.sha256(repr(requested).encode()).hexdigest()


def capture_reference(
    engine: Engine, works: Sequence[Work], captures: OpenCaptures, progress: Progress, keep_head: bool = True
) -> None:
    """Capture the digests of all items in `works`, each written at once, then those of the second steps.

    What errors is left out, to be requested again next time; a capture that holds all its items is sealed.
    """
    refuse_unanswerable(engine.generates, works, "reference")
    folder = next(iter(captures.values())).folder.parent / PASSES
    engine.keep_in(folder, partial(progress.within, "layer"))
    engine.report_to(progress.note)
    plan = engine.batches()
    if plan is not None:
        progress.note(f"The reference: {batches_line(plan)}")
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
    """The second steps of a probe, as `capture_reference` does the first."""
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


def captured(
    works: Sequence[Work],
    open_capture: Callable[[Probe], Capture],
    load_reference: Callable[[], Engine] | None,
    progress: Progress,
    keep_head: bool = True,
) -> OpenCaptures:
    """The captures of all items in `works`; what is missing is captured first, by one process at a time.

    The items of `works` then hold all that the branch is to answer: what follows from the reference's answers too.

    A complete capture is only read. One that is not is locked and read again: another may have captured it meanwhile.

    Raises:
        UsageError: an item is missing and there is no reference to ask (`load_reference` is None), or an item was
            captured with other tokens than it has now.
    """
    captures = {work.probe.name: open_capture(work.probe) for work in works}
    absent = _unfinished(captures, works)
    if absent and load_reference is None:
        work, capture = absent[0], captures[absent[0].probe.name]
        lacking = {item.key for item in work.todo}
        lacking |= {first_key(item.key) for item in second_items(work, capture) if item.key not in capture}
        raise UsageError(
            "pack-lacks-items",
            f"The reference pack's {capture.folder} lacks {len(lacking)} of the {len(work.items)} items "
            f"of this run; capture it with this version of q36eval.",
        )
    if absent and load_reference is not None:
        count = sum(len(work.todo) for work in absent)
        with ExitStack() as locks:
            # always in the same order, so that no two wait for each other
            for path in sorted(captures[work.probe.name].lock_file for work in absent):
                locks.enter_context(_locked(path, progress, count))
            captures |= {work.probe.name: open_capture(work.probe) for work in absent}
            for work in absent:
                _adopt_parts(work, captures[work.probe.name])
            absent = _unfinished(captures, absent)
            if any(work.todo or _missing_second(work, captures[work.probe.name]) for work in absent):
                try:
                    capture_reference(load_reference(), absent, captures, progress, keep_head)
                except CorruptCheckpointError as error:  # its layers are decoded while it is evaluated
                    raise UsageError(error.code, f"The reference cannot be used: {error}") from error
            for work in absent:
                capture = captures[work.probe.name]
                wanted = [*work.items, *second_items(work, capture)]
                capture.finish([item.key for item in wanted])
    for work in works:
        capture = captures[work.probe.name]
        second = second_items(work, capture)
        _check_tokens(capture, [*work.items, *second])
        work.items = followed_up(work.items, second)
    return captures


def _adopt_parts(work: Work, capture: Capture) -> None:
    """Take over what a finished capture of the same reference holds of the same parts of a suite.

    So a canary of one's own costs the reference its own answer, and not all the others' again.
    """
    probe, header = work.probe, capture.header
    if len(capture):
        return
    for folder, other, manifest in captures_in(capture.folder.parent):
        alike = (other.probe, other.identity, other.kind) == (header.probe, header.identity, header.kind)
        if folder == capture.folder or manifest is None or not alike:
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


@contextmanager
def _locked(path: Path, progress: Progress, count: int) -> Iterator[None]:
    """Hold a capture's lock, awaiting another's turn first.

    Raises:
        UsageError: its folder cannot be written to.
    """
    with ExitStack() as held:
        try:
            waiting = partial(progress.stage, "waiting for another run to capture the reference", count)
            held.enter_context(exclusive(path, waiting))
        except OSError as error:
            raise cannot_write(path.parent, error) from error
        yield


def _unfinished(captures: OpenCaptures, works: Sequence[Work]) -> list[Work]:
    """The works whose captures lack items or their manifest, those that are captured marked as done."""
    known = [Work(work.probe, work.items, done=frozenset(captures[work.probe.name])) for work in works]
    return [
        work
        for work in known
        if work.todo
        or (work.items and captures[work.probe.name].manifest is None)
        or _missing_second(work, captures[work.probe.name])
    ]


def _check_tokens(capture: Capture, items: Sequence[WorkItem]) -> None:
    """Answers to other tokens are no answers to these: a library may split text otherwise than when it was captured."""
    others = [item for item in items if item.key in capture and capture.asked(item.key) != requested_sha256(item)]
    if others:
        raise UsageError(
            "capture-tokens-differ",
            f"The capture {capture.folder} holds {len(others)} of {len(items)} items in other tokens than they have "
            f"here; delete it and capture anew with the libraries of this machine, or use those it was made with.",
        )
