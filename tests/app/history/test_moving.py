"""Whole runs from one history into another: the same to the byte, nothing overwritten, nothing in half."""

import io
import json
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.history.import_export import Imported, take_in
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.history.run_transfer import put_run, whole_run
from q36eval.records import ProbeName
from q36eval.token_files import TOKENS
from tests import commands, forked
from tests.app.history.filled import DAY, WAIVER, fill, keep_files, outcome
from tests.app.judged_runs import items_of, judge_run, open_history
from tests.raising import raises


def exported(state: Path, *arguments: str) -> Path:
    file = state / "runs.zip"
    commands.q36eval("history", "export", *(arguments or ("--all",)), "--out", str(file), state=state, code=0)
    return file


def imported(state: Path, file: Path) -> Imported:
    return take_in(open_history(state), Paths(state, state), file)


def changed(archive: bytes, change: Callable[[dict[str, bytes]], object], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The archive with its files changed."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        files = {name: old.read(name) for name in old.namelist()}
    change(files)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", how) as new:
        for name, content in files.items():
            new.writestr(name, content)
    return target.getvalue()


def edited(archive: bytes, edit: Callable[[Any], object], part: str = "runs/") -> bytes:
    """The archive with the JSON of a file in it changed."""

    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.startswith(part))
        body = json.loads(files[name])
        edit(body)
        files[name] = json.dumps(body).encode()

    return changed(archive, change)


@pytest.mark.long
def test_a_run_goes_whole_and_comes_out_the_same_to_the_byte(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 80, DAY, items=items_of(80))
    keep_files(here, run, b"tokens")
    archive = exported(here, run.id)
    done = commands.q36eval("history", "import", str(archive), "--json", state=there)
    (said,) = json.loads(done.stdout)
    assert (said["added"], said["known"], said["verdicts_differ"]) == ([run.id], [], [])
    assert whole_run(open_history(there), run.id) == whole_run(history, run.id)
    assert (Paths(there, there).tokens(run.id) / TOKENS).read_bytes() == b"tokens"
    assert exported(there).read_bytes() == archive.read_bytes()
    assert commands.q36eval("history", "show", run.id, "--replay", state=there).returncode == 0


@pytest.mark.long
def test_what_is_there_is_passed_over_but_for_files_that_it_lacks(tmp_path: Path) -> None:
    """A decision that differs stays as it is here; another content is refused, with the whole archive."""
    here, there = tmp_path / "here", tmp_path / "there"
    history, other = open_history(here), open_history(there)
    run = judge_run(history, 80, DAY, items=items_of(80))
    imported(there, exported(here))
    newest = other.bless(run.id, "jan", "the last word")
    keep_files(here, run, b"tokens")
    assert run.report is not None
    assert run.circumstances is not None
    history.decide_again(run.id, run.report, run.circumstances.model_copy(update={"waivers": (WAIVER,)}))
    came = imported(there, exported(here))
    assert (came.added, came.known) == ((), (run.id,))
    assert other.blessings("main") == [newest]
    assert other.get_run(run.id).circumstances == run.circumstances
    assert (Paths(there, there).tokens(run.id) / TOKENS).read_bytes() == b"tokens"
    judge_run(history, 0, DAY, items=items_of(0))
    other.add_items(run.id, [outcome("new", 0.0)])
    with raises(UsageError, "run-differs", "its items"):
        imported(there, exported(here))
    assert [one.id for one in other.summaries()] == [run.id]  # nor did the run that is new come in


def test_a_run_that_no_column_holds_leaves_nothing_behind(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    whole = whole_run(history, run.id)
    history.delete_run(run.id)
    twice = whole.model_copy(update={"run": run.model_copy(update={"id": "x"})})
    huge = whole.measurements[0].counts.model_copy(update={"scored": 1 << 70})
    measurements = (whole.measurements[0].model_copy(update={"counts": huge}),)
    with raises(UsageError, "value-not-storable"):
        put_run(history, twice.model_copy(update={"measurements": measurements}), imported=None)
    assert history.summaries() == []
    put_run(history, whole, imported=None)
    assert len(history.items(run.id, ProbeName.EVALS)) == 203


@pytest.mark.long
def test_an_export_into_a_folder_is_an_archive_of_each_run(tmp_path: Path) -> None:
    _, run = fill(tmp_path)
    folder = tmp_path / "each"
    folder.mkdir()
    assert commands.q36eval("history", "export", "--all", "--out", str(folder), state=tmp_path).returncode == 0
    assert [path.name for path in folder.iterdir()] == [f"{run.id}.zip"]


def test_an_import_killed_at_any_moment_leaves_no_run_in_half_and_is_whole_when_done_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run = judge_run(open_history(here), 80, DAY, items=items_of(80))
    archive = exported(here, run.id)
    killed = 0
    for number in range(8):

        def kill_after(moment: float = 0.02 + 0.04 * number) -> None:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel then ends the process at that CPU second
            signal.setitimer(signal.ITIMER_PROF, moment)

        child = forked.start(
            *("history", "import", str(archive)), state=there, stderr=tmp_path / "stderr", before=kill_after
        )
        killed += child.wait() == -signal.SIGPROF
        done = commands.q36eval("history", "list", "--json", state=there)
        assert done.returncode in (0, 2), "killed before there was a history, there is none"
        if any(each["id"] == run.id for each in json.loads(done.stdout).get("runs", ())):
            assert whole_run(open_history(there), run.id) == whole_run(open_history(here), run.id)
    assert killed, "every import ended before it was killed"
    assert commands.q36eval("history", "import", str(archive), state=there).returncode == 0
    assert whole_run(open_history(there), run.id) == whole_run(open_history(here), run.id)
