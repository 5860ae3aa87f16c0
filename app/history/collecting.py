"""Removes what nothing needs any more: planned first, then removed; nothing that a running run may still write.

Which runs are retained a person says (`Retention`).
"""

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Literal

from q36eval.config import Paths
from q36eval.errors import Q36Error, StorageError
from q36eval.history import History, RunState, RunSummary
from q36eval.history.run_files import RunFiles
from q36eval.locks import exclusive, is_held
from q36eval.references import use_of
from q36eval.run.drift import keep_drifts

GRACE = timedelta(days=1)
"""What is younger may be of a run that another machine is measuring, or that is about to be written down."""

WHY = "its runs cannot be read from here"

Kind = Literal["run", "file", "folder", "pack", "copy"]


@dataclass(frozen=True)
class Retention:
    """What stays: what is younger, or was used in less, than so many days, and the newest runs of each branch.

    A run that was ever blessed or signed is always retained.
    """

    keep_days: int
    keep_newest: int = 1


def outdated(history: History, retention: Retention, now: datetime) -> Iterator[RunSummary]:
    """The runs that are not retained, oldest first."""
    cared_for = history.reviewed_runs()
    young = now - timedelta(days=retention.keep_days)
    ranks: dict[tuple[str, str], int] = {}
    runs = []
    for run in history.summaries():  # newest first
        place = (run.family, run.branch)
        ranks[place] = ranks.get(place, 0) + 1
        is_new, is_young = ranks[place] <= retention.keep_newest, run.started >= young
        if not (is_new or is_young or run.id in cared_for):
            runs.append(run)
    yield from reversed(runs)


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
    """Of a pack: it stays where something opened it since."""


@dataclass(frozen=True)
class Plan:
    """What would be removed, and what should be known beside it. `texts` are those that no run refers to even now."""

    removals: tuple[Removal, ...] = ()
    notes: tuple[str, ...] = ()
    texts: int = 0
    texts_bytes: int = 0

    def of(self, kind: Kind) -> list[Removal]:
        """The removals of one kind."""
        return [removal for removal in self.removals if removal.kind == kind]


def plan(history: History, paths: Paths, retention: Retention | None, now: datetime) -> Plan:
    """What may be removed: what nothing refers to and, with a `retention`, what it does not retain."""
    sight = _Sight(history, paths, now)
    runs = [] if retention is None else list(_runs(sight, retention))
    gone = {removal.name for removal in runs}
    removals = [*runs, *_files(sight, gone), *_folders(sight, gone)]
    if retention is not None:
        removals += [*_packs(sight, timedelta(days=retention.keep_days)), *_copies(sight, retention)]
    texts, texts_bytes = history.unused_texts()
    return Plan(tuple(removals), tuple(sight.notes), texts, texts_bytes)


@dataclass
class _Sight:
    """What is looked at: the history in use, and all others that keep their files in this state."""

    history: History
    paths: Paths
    now: datetime
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = RunFiles(self.paths.state)
        self.others: list[History] = []
        self.blind = False
        for name, history_id in self.files.histories(self.history, self.paths.history):
            why = self._look_into(name, history_id)
            if why is not None:
                self.blind = True
                self.notes.append(
                    f"The history {name} stores files here too, and {why}: no file, folder or pack is removed. If it "
                    f"is gone for good, remove its line from {self.files.notes}."
                )

    def _look_into(self, name: str, history_id: str) -> str | None:
        """Why nothing can be known of what that history needs; None where it was opened, and is left as it is."""
        if "://" in name:
            return WHY
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
        """Content hashes of the files that some run refers to, of this history all but those that go."""
        return self.history.files_of_runs(gone).union(*(other.files_of_runs() for other in self.others))

    def is_old(self, path: Path) -> bool:
        """Whether it was last written longer ago than anybody takes to write it down."""
        return datetime.fromtimestamp(path.stat().st_mtime, UTC) < self.now - GRACE

    def is_measured(self, run_id: str, started: datetime) -> bool:
        """Whether the run may be being measured: its lock is held here, or it said so lately, maybe elsewhere."""
        if is_held(self.paths.run_lock(run_id)):
            return True
        progress = self.history.progress(run_id)
        return max(started, started if progress is None else progress.at) >= self.now - GRACE


def _runs(sight: _Sight, retention: Retention) -> Iterator[Removal]:
    for run in outdated(sight.history, retention, sight.now):
        if run.state is RunState.RUNNING and sight.is_measured(run.id, run.started):
            continue
        if is_held(sight.paths.run_lock(run.id)):
            continue
        yield Removal("run", run.id, f"{run.family}/{run.branch}, {run.verdict or run.state}; not retained")


def _files(sight: _Sight, gone: set[str]) -> Iterator[Removal]:
    """Files that no run refers to that stays."""
    if sight.blind:
        return
    used = sight.used(gone)
    freed = sight.history.files_of_runs() - used
    for path in sight.files.all():
        if path.name not in used and (path.name in freed or sight.is_old(path)):
            why = "only runs to be removed refer to it" if path.name in freed else "no run refers to it"
            yield Removal("file", path.name, why, path.stat().st_size, path)


def _folders(sight: _Sight, gone: set[str]) -> Iterator[Removal]:
    """Working folders of runs that are gone, or whose files are all kept by their content."""
    if sight.blind:
        return
    here = {run.id: run for run in sight.history.summaries()}
    elsewhere = {run.id for other in sight.others for run in other.summaries()}
    for folder in sorted(path for path in (sight.paths.state / "tokens").glob("*") if path.is_dir()):
        name = folder.name
        if name in elsewhere or is_held(sight.paths.run_lock(name)):
            continue
        if name in gone:
            why = "its run is to be removed"
        elif name not in here:
            why = "no run has this id" if sight.is_old(folder) else ""
        else:
            done = here[name].state is RunState.FINISHED and sight.files.is_kept(sight.history, name)
            why = "all its files are stored by their content" if done else ""
        if why:
            yield Removal("folder", name, why, size_of(folder), folder)


def _packs(sight: _Sight, unused_for: timedelta) -> Iterator[Removal]:
    """Packs of references that nothing opened for so long: a new version of a library makes another pack."""
    if sight.blind:
        return
    for folder in sorted(path for path in sight.paths.captures.glob("*") if path.is_dir()):
        use = use_of(folder)
        idle = sight.now - use.last_used
        if any(is_held(lock) for lock in folder.rglob("*.lock")) or idle <= unused_for:
            continue
        yield Removal("pack", folder.name, f"not used for {idle.days} days", use.size_bytes, folder, use.last_used)


def _copies(sight: _Sight, retention: Retention) -> Iterator[Removal]:
    """Old copies of the state's own history, and of the one in use where that is another file."""
    own = sight.paths.history
    used = own if "://" in sight.history.name else Path(sight.history.name)
    copies = {copy.resolve() for file in (own, used) for copy in file.parent.glob(f"{escape(file.name)}.before-*")}
    for copy in sorted(copies):
        stat = copy.stat()
        if sight.now - datetime.fromtimestamp(stat.st_mtime, UTC) > timedelta(days=retention.keep_days):
            yield Removal("copy", copy.name, "made before a migration", stat.st_size, copy)


def size_of(folder: Path) -> int:
    """Bytes of all files below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def remove(history: History, paths: Paths, planned: Plan) -> list[Removal]:
    """Remove what was planned, each looked at once more; returns what is gone.

    Raises:
        StorageError: the database refuses it; what was removed before stays removed.
    """
    cared_for = history.reviewed_runs()
    removed = [one for one in planned.of("run") if one.name not in cared_for and _remove_run(history, paths, one.name)]
    history.remove_unused_texts()
    keep_drifts(history)
    # it keeps others from writing for as long as it takes, and a gate does not wait for ever
    if removed and not any(is_held(lock) for lock in paths.run_lock("").parent.glob("*.lock")):
        with suppress(StorageError):  # in use; the room is used again all the same
            history.give_back_room()
    sight = _Sight(history, paths, datetime.now(UTC))
    with sight.files.held():
        used = sight.used()  # once more: a run may have ended since, which refers to one of them
        removed += [one for one in planned.of("file") if one.name not in used and not sight.blind and _unlink(one)]
    remaining = {one.name for one in planned.of("run")} - {one.name for one in removed}
    if not sight.blind:
        removed += [one for one in planned.of("folder") if one.name not in remaining and _remove_folder(paths, one)]
        removed += [one for one in planned.of("pack") if _remove_pack(one)]
    return removed + [one for one in planned.of("copy") if _unlink(one)]


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
            return _remove_tree(removal)
    except BlockingIOError:
        return False


def _remove_pack(removal: Removal) -> bool:
    """Whether it is gone: nobody opened it since it was planned."""
    assert removal.path is not None, "a folder lies somewhere"
    return use_of(removal.path).last_used == removal.last_used and _remove_tree(removal)


def _remove_tree(removal: Removal) -> bool:
    assert removal.path is not None, "a folder lies somewhere"
    shutil.rmtree(removal.path, ignore_errors=True)
    return not removal.path.exists()


def _unlink(removal: Removal) -> bool:
    assert removal.path is not None, "a file lies somewhere"
    try:
        removal.path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
