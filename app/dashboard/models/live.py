"""What the pages say of runs that are being measured. Pure."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from q36eval.app.dashboard.models.overview import age_text
from q36eval.history import RunProgress, RunSummary

SILENT_AFTER = timedelta(minutes=10)
"""A gate says how far it is every second while it asks; loading a checkpoint may take minutes."""


@dataclass(frozen=True)
class LiveRun:
    """A run in state `running`; `share` is what is done of its stage, None where it never said; `silent` a dead one."""

    id: str
    family: str
    branch: str
    share: float | None
    words: str
    silent: bool


def live_runs(running: Iterable[tuple[RunSummary, RunProgress | None]], now: datetime) -> list[LiveRun]:
    """Each of them with how far it is; those that are silent come last."""
    found = [_live(run, progress, now) for run, progress in running]
    return sorted(found, key=lambda live: (live.silent, live.family, live.branch, live.id))


def resume_command(branch: str, run_id: str) -> str:
    """What continues an interrupted run."""
    return f"q36eval gate --branch {shlex.quote(branch)} --resume {run_id}"


def _live(run: RunSummary, progress: RunProgress | None, now: datetime) -> LiveRun:
    last = run.started if progress is None else progress.at
    silent = now - last > SILENT_AFTER
    begun = f"begun {age_text(run.started, now)}"
    if progress is None:
        words = f"{begun}, has not said how far it is"
    else:
        of = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
        words = f"{progress.stage}{of} · {begun}"
    if silent:
        words += f" · no sign of life since {age_text(last, now)}"
    share = None if progress is None or not progress.total else min(1.0, progress.done / progress.total)
    return LiveRun(run.id, run.family, run.branch, share, words, silent)
