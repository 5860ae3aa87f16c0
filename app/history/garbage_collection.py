"""Removes unneeded data: planned first, then removed; nothing that a running run may still write."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Literal

from q36eval.config import Paths
from q36eval.errors import StorageError
from q36eval.history import History, RunState
from q36eval.locks import exclusive, is_held
from q36eval.records import branch_title
from q36eval.references import use_of

GRACE = timedelta(days=1)
"""A younger run may be measured on another machine, and a younger pack be opened there."""

Kind = Literal["run", "pack", "copy"]


@dataclass(frozen=True)
class Retention:
    """What stays: data younger than that many days or used since, and the newest runs of each branch.

    A run that was ever blessed or signed is always retained.
    """

    keep_days: int
    keep_newest: int = 1


@dataclass(frozen=True)
class Removal:
    """One thing that may be removed.

    A `run` with all that history keeps of it and the folder of its files; a `pack` captured of a reference; a `copy` of
    the database from before a migration.
    """

    kind: Kind
    name: str
    why: str
    size_bytes: int = 0
    path: Path | None = None
    last_used: datetime | None = None
    """Of a pack, which stays if something opened it since."""


@dataclass(frozen=True)
class Plan:
    """What would be removed."""

    removals: tuple[Removal, ...] = ()

    def of(self, kind: Kind) -> list[Removal]:
        """The removals of one kind."""
        return [removal for removal in self.removals if removal.kind == kind]


def plan(history: History, paths: Paths, retention: Retention | None, now: datetime) -> Plan:
    """What may be removed beside texts that nothing refers to: what a `retention` does not retain."""
    if retention is None:
        return Plan()
    oldest = timedelta(days=retention.keep_days)
    runs, packs = _runs(history, paths, retention, now), _packs(paths, max(oldest, GRACE), now)
    return Plan((*runs, *packs, *_copies(history, paths, now - oldest)))


def _runs(history: History, paths: Paths, retention: Retention, now: datetime) -> Iterator[Removal]:
    """The runs that are not retained and not being measured, oldest first."""
    reviewed, ranks, outdated = history.reviewed_runs(), dict[tuple[str, str], int](), []
    for run in history.summaries():  # newest first
        place = (run.family, run.branch)
        ranks[place] = ranks.get(place, 0) + 1
        is_young = run.started >= now - timedelta(days=retention.keep_days)
        if not (is_young or ranks[place] <= retention.keep_newest or run.id in reviewed):
            outdated.append(run)
    for run in reversed(outdated):
        if is_held(paths.run_lock(run.id)):
            continue
        if run.state is RunState.RUNNING:  # it may be measured on another machine
            progress = history.progress(run.id)
            if max(run.started, run.started if progress is None else progress.at) >= now - GRACE:
                continue
        folder, why = paths.tokens(run.id), f"{branch_title(run.family, run.branch)}, {run.verdict or run.state}"
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        yield Removal("run", run.id, f"{why}; not retained", size, folder)


def _packs(paths: Paths, unused_for: timedelta, now: datetime) -> Iterator[Removal]:
    """Packs of references that nothing opened for that long: a new version of a library makes another pack."""
    for folder in sorted(path for path in paths.captures.glob("*") if path.is_dir()):
        use = use_of(folder)
        idle = now - use.last_used
        if idle > unused_for and not any(is_held(lock) for lock in folder.rglob("*.lock")):
            yield Removal("pack", folder.name, f"not used for {idle.days} days", use.size_bytes, folder, use.last_used)


def _copies(history: History, paths: Paths, before: datetime) -> Iterator[Removal]:
    """Old copies of the state's own history, and of the one in use if that is another file."""
    used = paths.history if "://" in history.name else Path(history.name)
    copies = {
        copy.resolve() for file in (paths.history, used) for copy in file.parent.glob(f"{escape(file.name)}.before-*")
    }
    for copy in sorted(copies):
        if datetime.fromtimestamp(copy.stat().st_mtime, UTC) < before:
            yield Removal("copy", copy.name, "made before a migration", copy.stat().st_size, copy)


def remove(history: History, paths: Paths, planned: Plan) -> list[Removal]:
    """Remove what was planned, each checked again; returns what is gone.

    Raises:
        StorageError: the database refuses it; what was removed before stays removed.
    """
    reviewed = history.reviewed_runs()
    removed = [one for one in planned.of("run") if one.name not in reviewed and _remove_run(history, paths, one.name)]
    history.remove_unused_texts()
    # making the file smaller keeps others from writing meanwhile, and a gate does not wait for ever
    if removed and not any(is_held(lock) for lock in paths.run_lock("").parent.glob("*.lock")):
        with suppress(StorageError):  # the file is in use and keeps its size
            history.give_back_room()
    removed += [one for one in planned.of("pack") if _last_used(one) == one.last_used and _remove(one.path)]
    return removed + [one for one in planned.of("copy") if _remove(one.path)]


def _remove_run(history: History, paths: Paths, run_id: str) -> bool:
    """Whether the run is gone: nobody measured it meanwhile."""
    lock = paths.run_lock(run_id)
    try:
        with exclusive(lock):
            history.delete_run(run_id)
            _remove(paths.tokens(run_id))
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


def _last_used(pack: Removal) -> datetime:
    assert pack.path is not None, "a pack is a folder"
    return use_of(pack.path).last_used


def _remove(path: Path | None) -> bool:
    """Whether the file or the folder is gone."""
    assert path is not None, "each of them has one"
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    return not path.exists()
