"""Puts the runs of an archive into a history. Nothing that is there is overwritten, and no run comes in half."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from q36eval.app.history.archive import Reader, reading
from q36eval.errors import StorageError, UsageError
from q36eval.history import Decision, History, RunRecord, WaiverRecord, WholeRun
from q36eval.history.moving import put_review, put_run, put_waivers, whole_run
from q36eval.history.run_files import RunFiles
from q36eval.records import Record
from q36eval.run.drift import keep_drifts


@dataclass(frozen=True)
class Imported:
    """What an import did: runs that came in, runs that were there already, and of those what a person wrote anew.

    `older` were decided again here since they were exported. `waivers` are those that came in, `left_out` how many of
    the archive were not asked for.
    """

    added: tuple[str, ...]
    known: tuple[str, ...]
    older: tuple[str, ...]
    reviewed: tuple[str, ...]
    waivers: tuple[WaiverRecord, ...]
    left_out: int

    def in_force(self, on: date) -> list[WaiverRecord]:
        """The waivers that came in and count from now on."""
        return [one for one in self.waivers if one.revoked is None and one.waiver.expires >= on]


def take_in(history: History, state: Path, file: Path, *, waivers: bool = False) -> Imported:
    """Import an archive, whose runs' files are kept in `state`; its waivers only where they are asked for.

    The whole archive is read, and held against what is here, before anything is written. Stopped half way, it is simply
    done again.

    Raises:
        UsageError: it is damaged or no archive of ours, or a run in it is here with another content.
        StorageError: the disk refuses it.
    """
    with reading(file) as archive:
        here = _here(history, archive)
        for run_id in archive.manifest.runs:
            _check(archive, history, archive.run(run_id), here.get(run_id))
        written = list(archive.waivers())
        reviewed, files = [], RunFiles(state)
        for run_id in archive.manifest.runs:
            whole = _with_files(archive, archive.run(run_id))
            with files.held():
                files.note(history)
                _keep_files(archive, files, whole)
                if run_id not in here:
                    put_run(history, whole)
                elif put_review(history, whole):
                    reviewed.append(run_id)
        came = put_waivers(history, written) if waivers else []
        keep_drifts(history)
        known = tuple(run_id for run_id in archive.manifest.runs if run_id in here)
        return Imported(
            added=tuple(run_id for run_id in archive.manifest.runs if run_id not in here),
            known=known,
            older=tuple(run_id for run_id in known if not _same_decision(here[run_id], archive.run(run_id).run)),
            reviewed=tuple(reviewed),
            waivers=tuple(came),
            left_out=0 if waivers else len(written),
        )


def _here(history: History, archive: Reader) -> dict[str, RunRecord]:
    """The runs of the archive that are here already."""
    every = {run.id for run in history.summaries()}
    return {run_id: history.get_run(run_id) for run_id in archive.manifest.runs if run_id in every}


def _check(archive: Reader, history: History, theirs: WholeRun, here: RunRecord | None) -> None:
    """Refuse a run that is here with another content; another decision is one unless it is known as an earlier one.

    Raises:
        UsageError: it is such a run; says what differs.
    """
    if here is None:
        return
    ours = whole_run(history, here.id)
    parts: dict[str, tuple[object, object]] = {
        "what it was": (_measured(ours.run), _measured(theirs.run)),
        "its measurements": (_lines(ours.measurements), _lines(theirs.measurements)),
        "its items": (_lines(ours.items), _lines(theirs.items)),
        "what failed": (_lines(ours.about.failures), _lines(theirs.about.failures)),
    }
    names = {one.name: one.sha256 for one in ours.about.artifacts}
    parts["its files"] = (
        {one.name: names.get(one.name, one.sha256) for one in theirs.about.artifacts},
        {one.name: one.sha256 for one in theirs.about.artifacts},
    )
    if not _same_decision(here, theirs.run):
        known = any(_same_decision(one, theirs.run) for one in ours.about.earlier_decisions)
        parts["its decision"] = ("", "" if known else "another")
    differing = [what for what, (mine, other) in parts.items() if mine != other]
    if differing:
        raise UsageError(
            f"Run {here.id} is in this history with another content than in {archive.file} ({', '.join(differing)}); "
            f"nothing was imported."
        )


def _measured(run: RunRecord) -> str:
    """The run's record without its decision, by its JSON, in which no NaN differs from itself."""
    return run.model_copy(update={"verdict": None, "report": None, "circumstances": None}).model_dump_json()


def _same_decision(one: RunRecord | Decision, other: RunRecord) -> bool:
    decided = [(decision.report, decision.circumstances) for decision in (one, other)]
    texts = [[None if part is None else part.model_dump_json() for part in parts] for parts in decided]
    return texts[0] == texts[1]


def _lines(records: Sequence[Record]) -> list[str]:
    return sorted(record.model_dump_json() for record in records)


def _with_files(archive: Reader, whole: WholeRun) -> WholeRun:
    """The run with those of its files alone that the archive holds."""
    held = tuple(one for one in whole.about.artifacts if f"artifacts/{one.sha256}" in archive.manifest.files)
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
            raise StorageError(f"The files of run {whole.run.id} cannot be kept: {error.strerror or error}.") from error
        finally:
            temporary.unlink(missing_ok=True)
