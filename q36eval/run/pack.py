"""Capturing a reference pack: its size on disk, and the capture itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from q36eval.chat import TemplateLimitError
from q36eval.checkpoints.open_checkpoints import opened_once
from q36eval.config import Family, Paths
from q36eval.engines import EngineOptions
from q36eval.errors import EngineError, UsageError
from q36eval.kl.planning import scored_tokens
from q36eval.probes import Progress, Sink
from q36eval.records import ProbeFailure, ProbeName
from q36eval.references import Capture, Kind, Pack, captures_in
from q36eval.run.disk import file_system, size_in
from q36eval.run.floor import FloorKeeper, floor_state
from q36eval.run.items import Work
from q36eval.run.probe_set import Limits, Scored, build_probes, material
from q36eval.run.reference import Reference, local_reference
from q36eval.run.request import SHIPPED_CANARIES, CanaryChoice, Target
from q36eval.run.rounds import plan_probes

CAPTURED_PROBES = (ProbeName.CANARIES, ProbeName.KL, ProbeName.EVALS)
SHARD_OVERHEAD = 1536
"""The maximum of bytes that one item with tensors takes in headers and in lines of the manifest and journal."""
ANSWER_OVERHEAD = 1024
BYTES_PER_GENERATED_TOKEN = 8


@dataclass(frozen=True)
class CaptureRequest:
    """What to capture, and the target: `out` is the pack's own folder, by default one in the working state."""

    reference: Target
    scored: Scored
    probes: tuple[ProbeName, ...] = CAPTURED_PROBES
    engine: EngineOptions = field(default_factory=EngineOptions)
    """The engine of the reference itself, whatever engine serves the branches compared with it."""
    out: Path | None = None
    keep_head: bool = True
    family: Family | None = None
    canaries: CanaryChoice = SHIPPED_CANARIES


@dataclass(frozen=True)
class Size:
    """The size of one probe's capture: `total` bytes, mostly `tokens * bytes_per_token` if it stores tensors."""

    probe: ProbeName
    kind: Kind
    items: int
    tokens: int
    bytes_per_token: int
    shared_bytes: int
    total: int


@dataclass(frozen=True)
class Estimate:
    """The sizes before the work starts; `present` bytes exist already, `free` is the free disk space."""

    folder: Path
    sizes: tuple[Size, ...]
    present: int
    free: int

    @property
    def total(self) -> int:
        """Bytes of the whole pack."""
        return sum(size.total for size in self.sizes)

    def check(self) -> None:
        """Refuse to begin a capture that cannot be completed.

        Raises:
            UsageError: the disk lacks space for the missing part.
        """
        missing = self.total - self.present
        if missing > self.free:
            raise UsageError(
                "disk-insufficient",
                f"The pack needs {missing / 1e9:,.2f} GB more in {self.folder}, where {self.free / 1e9:,.2f} GB are "
                f"free; make room, or name another folder with --out.",
            )


class _Strict(Sink):
    """Raises on a failed plan: a partial plan makes no pack."""

    def add_failure(self, failure: ProbeFailure) -> None:
        raise EngineError("plan-failed", f"The {failure.probe} probe could not plan its items: {failure.reason}.")


def capture(request: CaptureRequest, paths: Paths, progress: Progress, announce: Callable[[Estimate], None]) -> Pack:
    """Capture the probes' items of the reference, or the remaining ones; `announce` is called with the size first.

    Only answers of exactly the identified bytes are stored: a reference that changed while it was loaded answers
    nothing.

    Raises:
        ChangedError: the reference's checkpoint changed meanwhile; stored answers precede the change.
        UsageError: the reference or the folder cannot be used, the folder holds another reference's pack, or the disk
            lacks space.
        EngineError: an item could not be measured; the measured ones are stored.
    """
    with opened_once() as folders:
        pack = _captured(request, paths, progress, announce)
        folders.verify()
    return pack


def reference_to_capture(request: CaptureRequest, paths: Paths) -> tuple[Reference, Limits]:
    """The reference with the folder of its pack, and the captured part of the suite.

    Raises:
        UsageError: it cannot be used, or the folder holds another reference's pack.
    """
    reference = local_reference(request.reference.folder, paths.captures, request.engine, by=request.engine.kind)
    if request.out is not None:
        reference = replace(reference, root=request.out)
        _check_same_reference(request.out, reference)
    limits = Limits(
        family=request.family,
        canaries=request.canaries,
        tokenizer_sha256=reference.identity.tokenizer_sha256,
    )
    return reference, limits


def _captured(request: CaptureRequest, paths: Paths, progress: Progress, announce: Callable[[Estimate], None]) -> Pack:
    reference, limits = reference_to_capture(request, paths)
    scored_on = partial(material, request.scored, reference, paths, progress)
    built = build_probes(request.probes, request.scored.suite, paths, scored_on, limits)
    assert reference.tokenizer is not None, "a local reference has one"
    try:
        works = plan_probes(built, reference.tokenizer(), _Strict())
    except TemplateLimitError as error:
        raise UsageError(error.code, f"The reference cannot be used: {error}") from error
    estimate = _estimate(works, reference, request)
    announce(estimate)
    estimate.check()
    captures = reference.answers(works, progress, keep_head=request.keep_head)
    captures.answer([(work, work.items) for work in works])
    reference.keep_templates()
    for work in works:
        _check_whole(captures[work.probe.name], work)
    # the floor belongs to the reference, too: with only the pack it cannot be measured
    FloorKeeper(reference.identity, reference.root, reference.load, progress).figures(works, captures)
    for work in works:
        lacking = floor_state(reference.root, captures[work.probe.name].header)
        if lacking is not None:
            raise EngineError("floor-missing", f"The captures are whole, and the noise floor is not: {lacking}.")
    return Pack.open(reference.root)


def _check_same_reference(folder: Path, reference: Reference) -> None:
    for path, header, _ in captures_in(folder):
        different = header.identity.differing_fields(reference.identity)
        if different:
            raise UsageError(
                "pack-identity",
                f"{folder} holds the pack of another reference ({path.name} differs in {', '.join(different)}); "
                f"name another folder with --out.",
            )


def _check_whole(capture: Capture, work: Work) -> None:
    if capture.manifest is None:
        missing = sum(item.key not in capture for item in work.items)
        raise EngineError(
            "answers-missing",
            f"The reference gave no answer to {missing} of {len(work.items)} items for {work.probe.name}; the rest is "
            f"kept in {capture.folder}, and the same command requests them again.",
        )


def _estimate(works: Sequence[Work], reference: Reference, request: CaptureRequest) -> Estimate:
    hidden, vocabulary = widths(request.reference.folder)
    sizes = tuple(size_of(work, hidden, vocabulary, request.keep_head) for work in works)
    present = sum(size_in(reference.open(work.probe).folder) for work in works)
    return Estimate(reference.root, sizes, present, file_system(reference.root).free_bytes)


def widths(folder: Path) -> tuple[int, int]:
    """Hidden size and vocabulary of a checkpoint.

    Raises:
        UsageError: its configuration does not contain them.
    """
    from q36eval.checkpoints.reader import read_json

    config = read_json(folder / "config.json")
    sizes = config.get("text_config") or config
    try:
        return int(sizes["hidden_size"]), int(sizes["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "config-incomplete", f"{folder / 'config.json'} does not say hidden_size and vocab_size."
        ) from error


def size_of(work: Work, hidden: int, vocabulary: int, keep_head: bool) -> Size:
    """The size of a capture of all items in `work`."""
    kind = work.probe.kind
    ids = sum(len(request.token_ids) for item in work.items for request in item.scores)
    windows = sum(len(item.scores) for item in work.items)
    tokens = sum(scored_tokens(item) for item in work.items)
    if kind == "answers":
        generated = sum(request.max_new_tokens for item in work.items for request in item.generations)
        total = generated * BYTES_PER_GENERATED_TOKEN + len(work.items) * ANSWER_OVERHEAD
        return Size(work.probe.name, kind, len(work.items), tokens, 0, 0, total)
    shared = 2 * hidden * vocabulary if keep_head else 0
    total = tokens * 2 * hidden + 4 * ids + 8 * windows + shared + len(work.items) * SHARD_OVERHEAD
    return Size(work.probe.name, kind, len(work.items), tokens, 2 * hidden, shared, total)
