"""What `history gc` removes, and what it must leave: what a run refers to, people signed, or somebody still writes."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from q36eval.app.history.garbage_collection import Plan, Removal, Retention, plan, remove
from q36eval.config import Paths
from q36eval.files import TEMPORARY
from q36eval.history import History, RunRecord
from q36eval.history.run_files import RunFiles
from q36eval.locks import exclusive
from q36eval.probes import Digest
from q36eval.records import ProbeName
from q36eval.references import Capture, mark_used, pack_folder
from q36eval.token_files import TOKENS
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


def runs(state: Path, count: int, content: bytes = b"tokens") -> tuple[History, list[RunRecord]]:
    """So many runs of one branch, oldest first, whose tokens are the same."""
    history = open_history(state)
    found = [judge_run(history, 0, DAY) for _ in range(count)]
    for run in found:
        keep_files(state, history, run, content)
    return history, found


def collect(history: History, state: Path, wanted: Retention | None = None) -> list[tuple[str, str]]:
    found = plan(history, paths_of(state), wanted, LATER)
    return [(one.kind, one.name) for one in remove(history, paths_of(state), found)]


def test_nothing_that_a_run_refers_to_goes(tmp_path: Path) -> None:
    history, (old, new) = runs(tmp_path, 2)
    files = RunFiles(tmp_path)
    shared = files.find(history, old.id, TOKENS)
    assert shared is not None
    assert shared == files.find(history, new.id, TOKENS)  # the same content is kept once
    assert plan(history, paths_of(tmp_path), None, LATER).removals == ()
    assert collect(history, tmp_path, NEWEST) == [("run", old.id)]
    assert shared.is_file()
    history.delete_run(new.id)
    assert {kind for kind, _ in collect(history, tmp_path)} == {"file"}
    assert not shared.exists()


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
    assert [(one["kind"], one["name"]) for one in done["removed"]] == [("run", old.id)]
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
    copies = [
        state / "history.sqlite.before-0005",
        *(elsewhere / f"of[us].sqlite.before-{n}" for n in ("0005", "0005.2")),
    ]
    state.mkdir()
    for copy in (*copies, elsewhere / "another.sqlite.before-0005"):
        copy.write_bytes(b"x")
    found = plan(history, paths_of(state), NEWEST, LATER).of("copy")
    assert {one.path for one in found} == set(copies)


@pytest.mark.long
def test_what_people_blessed_or_signed_stays_for_ever(tmp_path: Path) -> None:
    history, cared_for = fill(tmp_path)
    runs(tmp_path, 2, b"others")
    assert cared_for.id not in [name for _, name in collect(history, tmp_path, NEWEST)]
    found = plan(history, paths_of(tmp_path), NEWEST, LATER)
    late = [Removal("run", cared_for.id, "planned before it was blessed")]
    assert remove(history, paths_of(tmp_path), Plan((*found.removals, *late))) == []


def test_a_run_that_is_measured_keeps_its_rows_and_its_folder(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    begun = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    judge_run(history, 0, DAY)
    folder = RunFiles(tmp_path).working(begun.id)
    folder.mkdir(parents=True)
    (folder / TOKENS).write_bytes(b"half")
    with exclusive(paths_of(tmp_path).run_lock(begun.id)):
        found = plan(history, paths_of(tmp_path), NEWEST, LATER)
        assert found.removals == ()
        both = [Removal("run", begun.id, ""), Removal("folder", begun.id, "", path=folder)]
        assert remove(history, paths_of(tmp_path), Plan(tuple(both))) == []
    # without a lock it may be measured on another machine, for as long as it says so
    assert plan(history, paths_of(tmp_path), NEWEST, datetime.now(UTC)).removals == ()
    assert [kind for kind, _ in collect(history, tmp_path, NEWEST)] == ["run", "folder"]


def test_working_folders_are_read_and_go_with_their_runs(tmp_path: Path) -> None:
    history, (old, new) = runs(tmp_path, 2)
    stray = RunFiles(tmp_path).working("20200101-000000-abcdef")
    for folder in (RunFiles(tmp_path).working(old.id), stray):
        folder.mkdir(parents=True)
        (folder / "notes.bin").write_bytes(b"working")
    assert RunFiles(tmp_path).find(history, old.id, "notes.bin") is not None
    assert plan(history, paths_of(tmp_path), None, datetime.now(UTC)).removals == ()
    assert collect(history, tmp_path) == [("folder", stray.name)]
    assert collect(history, tmp_path, NEWEST) == [("run", old.id), ("folder", old.id)]
    assert RunFiles(tmp_path).find(history, new.id, TOKENS) is not None


def test_another_history_s_files_stay(tmp_path: Path) -> None:
    history, (run,) = runs(tmp_path, 1)
    other = History.open(tmp_path / "other.sqlite")
    theirs = judge_run(other, 0, DAY)
    keep_files(tmp_path, other, theirs, b"theirs")
    assert collect(history, tmp_path) == []
    assert collect(other, tmp_path) == []
    history.delete_run(run.id)
    with (tmp_path / "artifacts" / "histories.txt").open("a") as notes:
        notes.write("postgresql://q36@server/history\n")
    found = plan(history, paths_of(tmp_path), NEWEST, LATER)
    assert found.removals == ()
    assert "postgresql://q36@server/history" in found.notes[0]


def test_packs_go_only_when_asked(tmp_path: Path) -> None:
    history = open_history(tmp_path)
    unused = tmp_path / "packs" / "0123456789abcdef"
    unused.mkdir(parents=True)
    assert collect(history, tmp_path) == []
    with exclusive(unused / "kl.lock"):
        assert collect(history, tmp_path, NEWEST) == []
    assert plan(history, paths_of(tmp_path), NEWEST, datetime.now(UTC)).removals == ()
    assert collect(history, tmp_path, NEWEST) == [("pack", unused.name)]


def test_packs_that_nothing_opened_for_long_go_whatever_was_measured_against_them(tmp_path: Path) -> None:
    """A new torch makes another pack of the same checkpoint, and the old one, which runs name, is not opened again."""
    history, _ = runs(tmp_path, 1)
    old = pack_folder(paths_of(tmp_path).captures, IDENTITY)
    newer = pack_folder(old.parent, IDENTITY.model_copy(update={"engine_version": "another torch"}))
    for pack, days in ((old, 60), (newer, 60)):
        capture = Capture(pack, IDENTITY, ProbeName.EVALS, "suite")
        capture.add("item", Digest(values={"answer": "a" * 2000}))
        for file in pack.rglob("*"):
            os.utime(file, ((LATER - timedelta(days=days)).timestamp(),) * 2)
    mark_used(newer)  # now, forty days before LATER
    month = Retention(keep_days=50)
    planned = plan(history, paths_of(tmp_path), month, LATER)
    assert [(one.name, one.why) for one in planned.removals] == [(old.name, "not used for 60 days")]
    assert planned.removals[0].size_bytes > 2000
    mark_used(old)  # a gate began meanwhile
    assert remove(history, paths_of(tmp_path), planned) == []
    os.utime(old / "last-used", (0, 0))
    assert collect(history, tmp_path, month) == [("pack", old.name)]


def test_size_age_and_last_use_of_packs_are_shown(tmp_path: Path) -> None:
    root = paths_of(tmp_path).captures
    for version in ("1", "2"):
        identity = IDENTITY.model_copy(update={"engine_version": version})
        pack = pack_folder(root, identity)
        Capture(pack, identity, ProbeName.EVALS, "suite").add("item", Digest(values={"answer": "a" * 2_000_000}))
        for file in pack.rglob("*"):
            os.utime(file, ((datetime.now(UTC) - timedelta(days=12.5)).timestamp(),) * 2)
    mark_used(pack)
    shown = commands.q36eval("reference", "show", state=tmp_path, COLUMNS="300").stdout
    assert shown.count("2.0 MB, captured ") == 2
    rows = json.loads(commands.q36eval("reference", "show", "--json", state=tmp_path).stdout)["captures"]
    assert {row["pack_bytes"] > 2_000_000 and row["captured"] < row["last_used"] for row in rows} == {True, False}


def test_the_young_and_the_newest_of_each_branch_are_retained(tmp_path: Path) -> None:
    history, (old, new) = runs(tmp_path, 2)
    assert plan(history, paths_of(tmp_path), NEWEST, datetime.now(UTC)).removals == ()
    assert [one.name for one in plan(history, paths_of(tmp_path), NEWEST, LATER).of("run")] == [old.id]
    both = Retention(keep_days=30, keep_newest=2)
    assert plan(history, paths_of(tmp_path), both, LATER).of("run") == []
    assert new.id in {run.id for run in history.summaries()}


def test_a_folder_goes_once_all_of_it_is_kept_by_its_content(tmp_path: Path) -> None:
    history, (run,) = runs(tmp_path, 1)
    files, folder = RunFiles(tmp_path), RunFiles(tmp_path).working(run.id)
    for name, content, stays in (
        (TOKENS, b"other tokens", True),
        ("x.arrow", b"more", True),
        (TOKENS, b"tokens", False),
    ):
        folder.mkdir()
        (folder / name).write_bytes(content)
        (folder / f".{TOKENS}.1{TEMPORARY}").write_bytes(b"what a killed process left half written")
        files.drop_working(history, run.id)
        assert folder.exists() == stays, name
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("which", ["on a disk that is not mounted", "that cannot be read", "that was here before"])
def test_nothing_goes_that_a_history_out_of_reach_may_need(which: str, tmp_path: Path) -> None:
    history, _ = runs(tmp_path, 1)
    other, history_id = tmp_path / "not-mounted" / "history.sqlite", "4f1c"
    if which == "that cannot be read":
        other, history_id = tmp_path / "other.sqlite", ""
        other.write_bytes(b"damaged" * 1000)
    elif which == "that was here before":
        other, history_id = (tmp_path / "history.sqlite").resolve(), "0" * 64
    theirs = tmp_path / "artifacts" / "ab" / ("ab" + "0" * 62)
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"of a run in the other history")
    with (tmp_path / "artifacts" / "histories.txt").open("a") as notes:
        notes.write(f"{other}\t{history_id}\n")
    assert collect(history, tmp_path) == []
    assert theirs.exists()
