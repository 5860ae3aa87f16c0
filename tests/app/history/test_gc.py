"""What `history gc` removes, and what it must leave: what is young, people signed, or somebody still writes."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.history.garbage_collection import Plan, Removal, Retention, plan, remove
from q36eval.checkpoints import inspection
from q36eval.config import Paths
from q36eval.history import History, RunRecord
from q36eval.locks import exclusive
from q36eval.probes import Digest
from q36eval.records import ProbeName
from q36eval.references import Capture, mark_used, pack_folder
from tests import commands
from tests.app.history.filled import DAY, fill, keep_files
from tests.app.judged_runs import IDENTITY, judge_run, open_history
from tests.tampering import tamper

LATER = datetime.now(UTC) + timedelta(days=40)
"""A day on which all that the tests write is old."""

NEWEST = Retention(keep_days=30)
"""On that day only the newest of each branch is retained."""


def paths_of(state: Path) -> Paths:
    return Paths(state, state)


def runs(state: Path, count: int) -> tuple[History, list[RunRecord]]:
    """So many runs of one branch with files, oldest first."""
    history = open_history(state)
    found = [judge_run(history, 0, DAY) for _ in range(count)]
    for run in found:
        keep_files(state, run, b"tokens")
    return history, found


def collect(history: History, state: Path, wanted: Retention | None = None) -> list[tuple[str, str]]:
    found = plan(history, paths_of(state), wanted, LATER)
    return [(one.kind, one.name) for one in remove(history, paths_of(state), found)]


def test_old_runs_go_with_their_files_and_the_newest_of_each_branch_stays(tmp_path: Path) -> None:
    history, (old, new) = runs(tmp_path, 2)
    other = judge_run(History.open(tmp_path / "other.sqlite"), 0, DAY)  # of another history with this state
    keep_files(tmp_path, other, b"theirs")
    assert plan(history, paths_of(tmp_path), NEWEST, datetime.now(UTC)).removals == ()
    assert plan(history, paths_of(tmp_path), Retention(keep_days=30, keep_newest=2), LATER).removals == ()
    assert collect(history, tmp_path) == []
    assert collect(history, tmp_path, NEWEST) == [("run", old.id)]
    assert [run.id for run in history.summaries()] == [new.id]
    assert {path.name for path in (tmp_path / "tokens").iterdir()} == {new.id, other.id}


@pytest.mark.long
def test_a_dry_run_names_what_the_real_one_removes_and_touches_nothing(tmp_path: Path) -> None:
    _, (old, _) = runs(tmp_path, 2)
    other = judge_run(open_history(tmp_path), 0, DAY, branch="fp8-head")
    tamper(tmp_path / "history.sqlite", "UPDATE runs SET started = '2020' || substr(started, 5)")
    before = {
        path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and "sqlite" not in path.name
    }
    asked = ("history", "gc", "--keep-days", "30", "--json")
    told = json.loads(commands.q36eval(*asked, "--dry-run", state=tmp_path).stdout)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(open_history(tmp_path).summaries()) == 3
    done = json.loads(commands.q36eval(*asked, state=tmp_path).stdout)
    assert told["removed"] == done["removed"]
    assert [(one["kind"], one["name"], one["size_bytes"]) for one in done["removed"]] == [("run", old.id, 8)]
    assert other.id in {run.id for run in open_history(tmp_path).summaries()}
    assert "Nothing to remove" in commands.q36eval(*asked[:-1], state=tmp_path).stdout


def test_the_file_is_not_made_smaller_under_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes meanwhile, and of a large history that takes longer than a gate waits."""
    history, _ = runs(tmp_path, 3)
    shrunk: list[History] = []
    monkeypatch.setattr(History, "give_back_room", lambda self: shrunk.append(self))
    with exclusive(paths_of(tmp_path).run_lock("another")):
        assert len(collect(history, tmp_path, NEWEST)) == 2
    assert shrunk == []
    judge_run(history, 0, DAY)
    collect(history, tmp_path, NEWEST)
    assert shrunk == [history]


def test_copies_of_the_history_in_use_are_found_beside_it(tmp_path: Path) -> None:
    """It may be a file elsewhere, and its name a pattern."""
    state, elsewhere = tmp_path / "state", tmp_path / "else[where]"
    history = History.open(elsewhere / "of[us].sqlite")
    copies = [state / "history.sqlite.before-0005", elsewhere / "of[us].sqlite.before-0005"]
    state.mkdir()
    for copy in (*copies, elsewhere / "another.sqlite.before-0005"):
        copy.write_bytes(b"x")
    found = plan(history, paths_of(state), NEWEST, LATER).of("copy")
    assert {one.path for one in found} == set(copies)


@pytest.mark.long
def test_what_people_blessed_or_signed_stays_for_ever(tmp_path: Path) -> None:
    history, cared_for = fill(tmp_path)
    runs(tmp_path, 2)
    assert cared_for.id not in [name for _, name in collect(history, tmp_path, NEWEST)]
    found = plan(history, paths_of(tmp_path), NEWEST, LATER)
    late = [Removal("run", cared_for.id, "planned before it was blessed")]
    assert remove(history, paths_of(tmp_path), Plan((*found.removals, *late))) == []


def test_a_run_that_is_measured_keeps_its_rows_and_its_folder(history: History, tmp_path: Path) -> None:
    begun = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    judge_run(history, 0, DAY)
    keep_files(tmp_path, begun, b"half")
    with exclusive(paths_of(tmp_path).run_lock(begun.id)):
        assert plan(history, paths_of(tmp_path), NEWEST, LATER).removals == ()
        assert remove(history, paths_of(tmp_path), Plan((Removal("run", begun.id, ""),))) == []
    assert paths_of(tmp_path).tokens(begun.id).is_dir()
    # without a lock it may be measured on another machine, for as long as it says so
    assert plan(history, paths_of(tmp_path), NEWEST, datetime.now(UTC)).removals == ()
    assert collect(history, tmp_path, NEWEST) == [("run", begun.id)]


def test_packs_that_nothing_opened_for_long_go_whatever_was_measured_against_them(tmp_path: Path) -> None:
    """A new torch makes another pack of the same checkpoint, and the old one, which runs name, is not opened again."""
    history, _ = runs(tmp_path, 1)
    old = pack_folder(paths_of(tmp_path).captures, IDENTITY)
    newer = pack_folder(old.parent, IDENTITY.model_copy(update={"engine_version": "another torch"}))
    for pack in (old, newer):
        capture = Capture(pack, IDENTITY, ProbeName.EVALS, "suite")
        capture.add("item", Digest(values={"answer": "a" * 2000}))
        for file in pack.rglob("*"):
            os.utime(file, ((LATER - timedelta(days=60)).timestamp(),) * 2)
    mark_used(newer)  # now, forty days before LATER
    month = Retention(keep_days=50)
    assert collect(history, tmp_path) == []
    planned = plan(history, paths_of(tmp_path), month, LATER)
    assert [(one.name, one.why) for one in planned.removals] == [(old.name, "not used for 60 days")]
    assert planned.removals[0].size_bytes > 2000
    mark_used(old)  # a gate began meanwhile
    assert remove(history, paths_of(tmp_path), planned) == []
    os.utime(old / "last-used", (0, 0))
    with exclusive(old / "kl.lock"):
        assert collect(history, tmp_path, month) == []
    (old / "kl.lock").unlink()
    assert collect(history, tmp_path, month) == [("pack", old.name)]


# -- a history that goes away


@pytest.mark.long
def test_a_gate_whose_history_goes_away_ends_without_a_verdict(
    tmp_path: Path, weights: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, whole = tmp_path / "state", inspection.inspect_checkpoint
    open_history(state).close()

    def goes_away(*given: Any, **options: Any) -> Any:
        for file in state.glob("history.sqlite*"):
            file.unlink()
        return whole(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(inspection, "inspect_checkpoint", goes_away)
        done = commands.q36eval("gate", "--branch", "fp8-head", *weights, state=state)
    assert (done.returncode, done.stderr.count("q36eval: ")) == (4, 1), done.stderr
    assert "[history-deleted]" in done.stderr
    assert "--resume" not in done.stderr
    assert open_history(state).summaries() == []
