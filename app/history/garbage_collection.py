"""Removes what nothing needs any more: planned first, then removed; nothing that a running run may still write."""

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Literal

from q36eval.config import Paths
from q36eval.errors import Q36Error, StorageError
from q36eval.history import History, RunState
from q36eval.history.run_files import RunFiles
from q36eval.locks import exclusive, is_held
from q36eval.records import branch_title
from q36eval.references import use_of
from q36eval.run.drift import keep_drifts

GRACE = timedelta(days=1)
"""A younger file or run may belong to a run that another machine is measuring."""

Kind = Literal["run", "file", "folder", "pack", "copy"]


@dataclass(frozen=True)
class Retention:
    """What stays: what is younger than so many days or was used since, and the newest runs of each branch.

    A run that was ever blessed or signed is always retained.
    """

    keep_days: int
    keep_newest: int = 1


@dataclass(frozen=True)
class Removal:
    """One thing that may be removed.

    A `run` with all that history keeps of it; a `file` of runs by its content hash; the working `folder` of a run; a
    `pack` captured of a reference; a `copy` of the database from before a migration.
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
    """What would be removed, and notes for a person. `texts` are those that no run refers to even now."""

    removals: tuple[Removal, ...] = ()
    notes: tuple[str, ...] = ()
    texts: int = 0
    texts_bytes: int = 0

    def of(self, kind: Kind) -> list[Removal]:
        """The removals of one kind."""
        return [removal for removal in self.removals if removal.kind == kind]


class _State:
    """A working state at a moment, with the history in use and all others that keep their files in the state.

    While one of them cannot be read, `notes` names it, and no file, folder or pack is removed.
    """

    def __init__(self, history: History, paths: Paths, now: datetime) -> None:
        self.history, self.paths, self.now = history, paths, now
        self.files, self.others, self.notes = RunFiles(paths.state), list[History](), list[str]()
        for name, history_id in self.files.histories(history, paths.history):
            why = self._open(name, history_id)
            if why is not None:
                self.notes.append(
                    f"The history {name} stores files here too, and {why}: no file, folder or pack is removed. If it "
                    f"is gone for good, remove its line from {self.files.notes}."
                )

    def _open(self, name: str, history_id: str) -> str | None:
        """Add that history to the others; returns why its runs cannot be read, if they cannot."""
        if "://" in name:
            return "its runs cannot be read from here"
        try:
            other = History.open(name, upgrade=False)
        except Q36Error as error:
            return f"cannot be opened ({str(error).rstrip('.')})"
        if history_id and other.id != history_id:
            other.close()
            return "another history is in its place"
        self.others.append(other)
        return None

    def used(self, gone: Collection[str] = ()) -> set[str]:
        """Content hashes of the files of all runs but those of this history that are `gone`."""
        return self.history.files_of_runs(gone).union(*(other.files_of_runs() for other in self.others))

    def age(self, path: Path) -> timedelta:
        """How long ago it was last written."""
        return self.now - datetime.fromtimestamp(path.stat().st_mtime, UTC)

    def is_measured(self, run_id: str, started: datetime) -> bool:
        """Whether a running run said lately that it goes on; it may be measured on another machine."""
        progress = self.history.progress(run_id)
        return max(started, started if progress is None else progress.at) >= self.now - GRACE


def plan(history: History, paths: Paths, retention: Retention | None, now: datetime) -> Plan:
    """What may be removed: what nothing refers to and, with a `retention`, what it does not retain."""
    state = _State(history, paths, now)
    removals = [] if retention is None else list(_runs(state, retention))
    gone = {run.name for run in removals}
    if not state.notes:
        removals += [*_files(state, gone), *_folders(state, gone)]
    if retention is not None:
        oldest = timedelta(days=retention.keep_days)
        removals += [*([] if state.notes else _packs(state, max(oldest, GRACE))), *_copies(state, oldest)]
    return Plan(tuple(removals), tuple(state.notes), *history.unused_texts())


def _runs(state: _State, retention: Retention) -> Iterator[Removal]:
    """The runs that are not retained and not being measured, oldest first."""
    reviewed, ranks, outdated = state.history.reviewed_runs(), dict[tuple[str, str], int](), []
    for run in state.history.summaries():  # newest first
        place = (run.family, run.branch)
        ranks[place] = ranks.get(place, 0) + 1
        is_young = run.started >= state.now - timedelta(days=retention.keep_days)
        if not (is_young or ranks[place] <= retention.keep_newest or run.id in reviewed):
            outdated.append(run)
    for run in reversed(outdated):
        if is_held(state.paths.run_lock(run.id)):
            continue
        if run.state is not RunState.RUNNING or not state.is_measured(run.id, run.started):
            yield Removal(
                "run", run.id, f"{branch_title(run.family, run.branch)}, {run.verdict or run.state}; not retained"
            )


def _files(state: _State, gone: set[str]) -> Iterator[Removal]:
    """Files that no run refers to that stays."""
    used = state.used(gone)
    freed = state.history.files_of_runs() - used
    for path in state.files.all():
        if path.name not in used and (path.name in freed or state.age(path) > GRACE):
            why = "only runs to be removed refer to it" if path.name in freed else "no run refers to it"
            yield Removal("file", path.name, why, path.stat().st_size, path)


def _folders(state: _State, gone: set[str]) -> Iterator[Removal]:
    """Working folders of runs that are gone, or whose files are all kept by their content."""
    here = {run.id: run for run in state.history.summaries()}
    elsewhere = {run.id for other in state.others for run in other.summaries()}
    for folder in sorted(path for path in (state.paths.state / "tokens").glob("*") if path.is_dir()):
        name = folder.name
        if name in elsewhere or is_held(state.paths.run_lock(name)):
            continue
        if name in gone:
            why = "its run is to be removed"
        elif name not in here:
            why = "no run has this id" if state.age(folder) > GRACE else ""
        else:
            done = here[name].state is RunState.FINISHED and state.files.is_kept(state.history, name)
            why = "all its files are stored by their content" if done else ""
        if why:
            size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            yield Removal("folder", name, why, size, folder)


def _packs(state: _State, unused_for: timedelta) -> Iterator[Removal]:
    """Packs of references that nothing opened for so long: a new version of a library makes another pack."""
    for folder in sorted(path for path in state.paths.captures.glob("*") if path.is_dir()):
        use = use_of(folder)
        idle = state.now - use.last_used
        if idle > unused_for and not any(is_held(lock) for lock in folder.rglob("*.lock")):
            yield Removal("pack", folder.name, f"not used for {idle.days} days", use.size_bytes, folder, use.last_used)


def _copies(state: _State, oldest: timedelta) -> Iterator[Removal]:
    """Old copies of the state's own history, and of the one in use if that is another file."""
    own = state.paths.history
    used = own if "://" in state.history.name else Path(state.history.name)
    copies = {copy.resolve() for file in (own, used) for copy in file.parent.glob(f"{escape(file.name)}.before-*")}
    for copy in sorted(copies):
        if state.age(copy) > oldest:
            yield Removal("copy", copy.name, "made before a migration", copy.stat().st_size, copy)


def remove(history: History, paths: Paths, planned: Plan) -> list[Removal]:
    """Remove what was planned, each checked again; returns what is gone.

    Raises:
        StorageError: the database refuses it; what was removed before stays removed.
    """
    reviewed = history.reviewed_runs()
    removed = [one for one in planned.of("run") if one.name not in reviewed and _remove_run(history, paths, one.name)]
    history.remove_unused_texts()
    keep_drifts(history)
    # making the file smaller keeps others from writing meanwhile, and a gate does not wait for ever
    if removed and not any(is_held(lock) for lock in paths.run_lock("").parent.glob("*.lock")):
        with suppress(StorageError):  # the file is in use and keeps its size
            history.give_back_room()
    state = _State(history, paths, datetime.now(UTC))
    if not state.notes:
        remaining = {one.name for one in planned.of("run")} - {one.name for one in removed}
        with state.files.held():
            used = state.used()  # again: a run that ended since may refer to one of them
            removed += [one for one in planned.of("file") if one.name not in used and _remove(one)]
        removed += [one for one in planned.of("folder") if one.name not in remaining and _remove_folder(paths, one)]
        removed += [one for one in planned.of("pack") if _last_used(one) == one.last_used and _remove(one)]
    return removed + [one for one in planned.of("copy") if _remove(one)]


def _remove_run(history: History, paths: Paths, run_id: str) -> bool:
    """Whether the run is gone: nobody measured it meanwhile."""
    lock = paths.run_lock(run_id)
    try:
        with exclusive(lock):
            history.delete_run(run_id)
            lock.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


def _remove_folder(paths: Paths, removal: Removal) -> bool:
    try:
        with exclusive(paths.run_lock(removal.name)):
            return _remove(removal)
    except BlockingIOError:
        return False


def _last_used(pack: Removal) -> datetime:
    assert pack.path is not None, "a pack is a folder"
    return use_of(pack.path).last_used


def _remove(removal: Removal) -> bool:
    """Whether the file or the folder is gone."""
    assert removal.path is not None, "only a run has no path"
    if removal.path.is_dir():
        shutil.rmtree(removal.path, ignore_errors=True)
    else:
        with suppress(OSError):
            removal.path.unlink(missing_ok=True)
    return not removal.path.exists()
