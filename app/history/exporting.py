"""Takes runs out of a history, whole: into an archive that another history can take in."""

from collections.abc import Callable, Sequence
from pathlib import Path

from q36eval.app.history.archive import RUN_ID, Writer, writing
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.history import Artifact, History, RunState, WholeRun
from q36eval.history.moving import whole_run
from q36eval.history.run_files import NAMES, RunFiles, sha256_of
from q36eval.locks import is_held

Say = Callable[[str], None]


def export(history: History, paths: Paths, run_ids: Sequence[str], file: Path, say: Say) -> None:
    """Write those runs into the archive `file`; what is there is replaced once the new one is whole.

    Waivers of the runs' branches come with them. What is missing is said, and left out.

    Raises:
        UsageError: a run is being measured.
        StorageError: the disk refuses it.
    """
    places = dict.fromkeys((run.family, run.branch) for run in map(history.get_run, run_ids))
    with writing(file) as writer:
        for run_id in dict.fromkeys(run_ids):
            whole = _settled(whole_run(history, run_id), paths)
            _add(writer, history, whole, RunFiles(paths.state), say)
        writer.add_waivers(tuple(record for place in places for record in history.waiver_records(*place)))


def _settled(whole: WholeRun, paths: Paths) -> WholeRun:
    """The run as it stays: one whose process died may be resumed where it is taken."""
    run = whole.run
    if not RUN_ID.fullmatch(run.id):
        raise UsageError(f"The run {run.id!r} bears a name that no archive takes.")
    if run.state is not RunState.RUNNING:
        return whole
    if is_held(paths.run_lock(run.id)):
        raise UsageError(f"Run {run.id} is being measured; export it once it has ended.")
    return whole.model_copy(update={"run": run.model_copy(update={"state": RunState.INTERRUPTED})})


def _add(writer: Writer, history: History, whole: WholeRun, files: RunFiles, say: Say) -> None:
    """The run with its files; those not yet written down in history are written down in the archive."""
    known = {artifact.name: artifact for artifact in whole.about.artifacts}
    found = []
    for name in dict.fromkeys((*known, *NAMES)):
        file = files.find(history, whole.run.id, name)
        if file is not None:
            sha256 = sha256_of(file)
            writer.add_artifact(sha256, file)
            artifact = Artifact(run_id=whole.run.id, name=name, sha256=sha256, size_bytes=file.stat().st_size)
            if name in known and known[name] != artifact:
                raise UsageError(f"The file {file} of run {whole.run.id} is damaged: its content is not what it was.")
            found.append(artifact)
        elif name in known:
            say(f"The file {name} of run {whole.run.id} is gone; the archive does without it.")
    about = whole.about.model_copy(update={"artifacts": tuple(found)})
    writer.add_run(whole.model_copy(update={"about": about}))
