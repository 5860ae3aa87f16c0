"""A history that is gone while a run is measured into it: what was measured is kept as an archive in the state.

A file that was deleted or renamed lives for as long as it is open, so that it can still be read from. One that somebody
wrote over, or a server's that was dropped, cannot.
"""

from pathlib import Path

from q36eval.errors import Q36Error
from q36eval.history.archive import writing
from q36eval.history.records import RunState
from q36eval.history.run_transfer import whole_run
from q36eval.history.store import History

FOLDER = "rescued"


def rescue(history: History, run_id: str, state: Path) -> str:
    """Keep the run as `rescued/RUN.zip` below the state; a sentence for people on where it is, or why it is nowhere."""
    file = state / FOLDER / f"{run_id}.zip"
    try:
        whole = whole_run(history, run_id)
        if whole.run.state is RunState.RUNNING:
            whole = whole.model_copy(update={"run": whole.run.model_copy(update={"state": RunState.INTERRUPTED})})
        file.parent.mkdir(parents=True, exist_ok=True)
        with writing(file) as writer:
            writer.add_run(whole)
    except (Q36Error, OSError) as error:
        return f"What run {run_id} had measured is lost with it ({error}); gate the branch anew."
    measured = f"What was measured is in {file}; import it into the history that is to have it"
    if whole.run.state is RunState.FINISHED:
        return f"{measured}: q36eval history import {file}"
    return f"{measured}, and continue there: q36eval history import {file} && q36eval gate … --resume {run_id}"
