"""Whole runs from one history into another: an export writes them into an archive, an import takes them in.

An import overwrites nothing that is there, and no run comes in in half.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from q36eval.app.history.run_import import decided_here
from q36eval.config import Paths
from q36eval.errors import StorageError, UsageError
from q36eval.history import Artifact, History, RunRecord, RunState, WholeRun
from q36eval.history.archive import RUN_ID, Reader, Writer, reading, writing
from q36eval.history.run_files import NAMES, RunFiles, sha256_of
from q36eval.history.run_transfer import put_run, whole_run
from q36eval.locks import is_held
from q36eval.records import Record
from q36eval.run.drift import keep_drifts

Say = Callable[[str], None]


def export(history: History, paths: Paths, run_ids: Sequence[str], file: Path, say: Say) -> None:
    """Write those runs into the archive `file`; what is there is replaced once the new one is whole.

    Signatures, blessings and waivers stay behind. A missing file is reported, and left out.

    Raises:
        UsageError: a run is being measured.
        StorageError: the disk refuses it.
    """
    with writing(file) as writer:
        for run_id in dict.fromkeys(run_ids):
            whole = _settled(whole_run(history, run_id), paths)
            _add(writer, history, whole, RunFiles(paths.state), say)


def _settled(whole: WholeRun, paths: Paths) -> WholeRun:
    """The run as it stays: one whose process died may be resumed where it is taken."""
    run = whole.run
    if not RUN_ID.fullmatch(run.id):
        raise UsageError("run-id-invalid", f"The id of run {run.id!r} is one that no archive accepts.")
    if run.state is not RunState.RUNNING:
        return whole
    if is_held(paths.run_lock(run.id)):
        raise UsageError("run-unfinished", f"Run {run.id} is being measured; export it once it has ended.")
    return whole.model_copy(update={"run": run.model_copy(update={"state": RunState.INTERRUPTED})})


def _add(writer: Writer, history: History, whole: WholeRun, files: RunFiles, say: Say) -> None:
    """The run with its files; those not yet written down in history are written down in the archive."""
    known = {artifact.name: artifact for artifact in whole.about.artifacts}
    artifacts = []
    for name in dict.fromkeys((*known, *NAMES)):
        file = files.find(history, whole.run.id, name)
        if file is not None:
            sha256 = sha256_of(file)
            writer.add_artifact(sha256, file)
            artifact = Artifact(run_id=whole.run.id, name=name, sha256=sha256, size_bytes=file.stat().st_size)
            if name in known and known[name] != artifact:
                raise UsageError(
                    "artifact-damaged",
                    f"The file {file} of run {whole.run.id} is damaged: its content is not what it was.",
                )
            artifacts.append(artifact)
        elif name in known:
            say(f"The file {name} of run {whole.run.id} is missing; the archive leaves it out.")
    about = whole.about.model_copy(update={"artifacts": tuple(artifacts)})
    writer.add_run(whole.model_copy(update={"about": about}))


@dataclass(frozen=True)
class Imported:
    """What an import did: runs that it added, and runs that were there already.

    `says` is a sentence on every added run whose evidence gives another verdict than its archive. The decision over a
    known run stays.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    says: tuple[str, ...]


def take_in(history: History, state: Path, file: Path) -> Imported:
    """Import an archive, whose runs' files are kept in `state`.

    The whole archive is read and compared with what is here before anything is written. Its runs are decided here by
    their evidence. After an interruption the import is repeated.

    Raises:
        UsageError: it is damaged or not an archive of ours, a run in it is dated in the future, or is here with another
            content.
        StorageError: the disk refuses it.
    """
    with reading(file) as archive:
        here = _here(history, archive)
        for run_id in archive.manifest.runs:
            _check(archive, history, archive.run(run_id), here.get(run_id))
        now, says, files = datetime.now(UTC), [], RunFiles(state)
        for run_id in archive.manifest.runs:
            whole = _with_files(archive, archive.run(run_id))
            with files.held():
                files.note(history)
                _keep_files(archive, files, whole)
                if run_id not in here:
                    arrival = decided_here(history, whole)
                    put_run(history, arrival.whole, imported=now, items=archive.items(run_id))
                    says += [] if arrival.says is None else [arrival.says]
                else:
                    for artifact in whole.about.artifacts:  # the same content, or `_check` had refused it
                        history.add_artifact(artifact)
        keep_drifts(history)
        return Imported(
            added=tuple(run_id for run_id in archive.manifest.runs if run_id not in here),
            known=tuple(run_id for run_id in archive.manifest.runs if run_id in here),
            says=tuple(says),
        )


def _here(history: History, archive: Reader) -> dict[str, RunRecord]:
    """The runs of the archive that are here already."""
    every = {run.id for run in history.summaries()}
    return {run_id: history.get_run(run_id) for run_id in archive.manifest.runs if run_id in every}


def _check(archive: Reader, history: History, theirs: WholeRun, here: RunRecord | None) -> None:
    """Refuse a run that is here with another content, or that could not be decided here. A decision is no content.

    Raises:
        UsageError: it is such a run; says what differs.
    """
    if here is None:
        decided_here(history, theirs)
        for _ in archive.items(theirs.run.id):  # one that cannot be read is found before anything is written
            pass
        return
    ours = whole_run(history, here.id)
    parts: dict[str, tuple[object, object]] = {
        "what it was": (_measured(ours.run), _measured(theirs.run)),
        "its measurements": (_lines(ours.measurements), _lines(theirs.measurements)),
        "its items": (_sum(ours.items), _sum(archive.items(here.id))),
        "what failed": (_lines(ours.about.failures), _lines(theirs.about.failures)),
    }
    names = {one.name: one.sha256 for one in ours.about.artifacts}
    parts["its files"] = (
        {one.name: names.get(one.name, one.sha256) for one in theirs.about.artifacts},
        {one.name: one.sha256 for one in theirs.about.artifacts},
    )
    differing = [what for what, (mine, other) in parts.items() if mine != other]
    if differing:
        raise UsageError(
            "run-differs",
            f"Run {here.id} is in this history with another content than in {archive.file} ({', '.join(differing)}); "
            f"nothing was imported.",
        )


def _measured(run: RunRecord) -> str:
    """The run's record without its decision, by its JSON, in which no NaN differs from itself."""
    return run.model_copy(update={"verdict": None, "report": None, "circumstances": None}).model_dump_json()


def _lines(records: Sequence[Record]) -> list[str]:
    return sorted(record.model_dump_json() for record in records)


def _sum(records: Iterable[Record]) -> tuple[int, int]:
    """How many records there are, and the sum of their hashes: the same for the same ones in any order."""
    count = total = 0
    for record in records:
        count += 1
        total += int.from_bytes(hashlib.sha256(record.model_dump_json().encode()).digest(), "big")
    return count, total


def _with_files(archive: Reader, whole: WholeRun) -> WholeRun:
    """The run with those of its files alone that the archive holds."""
    held = tuple(one for one in whole.about.artifacts if archive.has_artifact(one.sha256))
    return whole.model_copy(update={"about": whole.about.model_copy(update={"artifacts": held})})


def _keep_files(archive: Reader, files: RunFiles, whole: WholeRun) -> None:
    for artifact in whole.about.artifacts:
        if files.path(artifact.sha256).is_file():
            continue
        temporary = files.folder / f"import.{os.getpid()}.tmp"
        try:
            files.folder.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as target:
                archive.artifact(artifact.sha256, target)
            files.keep(temporary, artifact.sha256)
        except OSError as error:
            raise StorageError(
                "file-unwritable", f"The files of run {whole.run.id} cannot be kept: {error.strerror or error}."
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
