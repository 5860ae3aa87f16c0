"""The overview's content: each branch's state, running measurements, and tasks for a person. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from q36eval.app.standing import BranchStanding
from q36eval.history import RunProgress, RunSummary

EXPIRES_SOON = timedelta(days=14)


def age_text(since: datetime, now: datetime) -> str:
    """How long ago, in the unit a person would say."""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            n = seconds // size
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def freshness(row: BranchStanding, now: datetime) -> str:
    """When the branch was judged last."""
    return "never judged" if row.of.judged is None else f"judged {age_text(row.of.judged.started, now)}"


def needs_of(row: BranchStanding, now: datetime) -> Iterable[str]:
    """The tasks of a branch for a reviewer besides its verdict."""
    if row.ships and row.blessing is None:
        yield "Passed and not blessed: drift has no baseline."
    today = now.astimezone(UTC).date()
    for waiver in sorted(row.waivers, key=lambda waiver: (waiver.expires, waiver.scope)):
        if row.of.judged is not None and waiver.expires - today <= EXPIRES_SOON:
            ends = "expired" if waiver.expires < today else "expires"
            yield f"The waiver of {waiver.scope} by {waiver.owner} {ends} on {waiver.expires}."


SILENT_AFTER = timedelta(minutes=10)
"""Of a run on another machine: a gate reports its progress every second, but loading takes minutes."""


@dataclass(frozen=True)
class LiveRun:
    """A run in state `running`: `share` is what is done of its stage, None where it never said; `pulse` says whether it
    is alive, and `silent` that it is not."""

    run: RunSummary
    share: float | None
    words: str
    pulse: str
    silent: bool


def live_runs(
    running: Iterable[tuple[RunSummary, RunProgress | None]],
    now: datetime,
    alive: Callable[[str], bool | None] = lambda run_id: None,
) -> list[LiveRun]:
    """Each of them with its progress; those that are silent come last.

    `alive` says whether a run's process lives, None where this machine cannot tell: then silence decides.
    """
    live = [_live(run, progress, now, alive(run.id)) for run, progress in running]
    return sorted(live, key=lambda live: (live.silent, live.run.family, live.run.branch, live.run.id))


def _live(run: RunSummary, progress: RunProgress | None, now: datetime, alive: bool | None) -> LiveRun:
    last = run.started if progress is None else progress.at
    silent = now - last > SILENT_AFTER if alive is None else not alive
    share, parts = None, ["no progress reported"]
    if progress is not None:
        of = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
        parts = [f"{progress.stage}{of}"]
        parts += [f"remaining: {progress.remaining}"] if progress.remaining and not silent else []
        share = min(1.0, progress.done / progress.total) if progress.total else None
    heard = f"last report {age_text(last, now)}"
    if alive is None:
        pulse = f"killed, or no report from another machine: {heard}" if silent else f"on another machine, {heard}"
    else:
        pulse = f"alive, {heard}" if alive else f"killed: its process has ended, {heard}"
    return LiveRun(run, share, " · ".join([*parts, f"begun {age_text(run.started, now)}"]), pulse, silent)
