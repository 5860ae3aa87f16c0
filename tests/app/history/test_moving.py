"""Whole runs from one history into another: the same to the byte, nothing overwritten, nothing in half.

What an archive from anybody may hold and claim: refused in one sentence, and nothing of it stays.
"""

import io
import json
import os
import random
import re
import signal
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.history.import_export import Imported, take_in
from q36eval.app.reviewing.redecision import decide_again
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord
from q36eval.history.archive import MANIFEST, Reader
from q36eval.history.decisions import sign
from q36eval.history.run_transfer import put_run, whole_run
from q36eval.records import ProbeName, Verdict
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


# -- what an archive from anybody may hold and claim


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = tmp_path_factory.mktemp("state")
    fill(state)
    return exported(state).read_bytes()


def in_bytes(part: str, edit: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """A change of the bytes of one file in the archive."""

    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.startswith(part))
        before, files[name] = files[name], edit(files[name])
        assert files[name] != before

    return lambda archive: changed(archive, change)


def in_run(**values: Any) -> Callable[[bytes], bytes]:
    return lambda archive: edited(archive, lambda whole: whole["run"].update(values))


def named(runs: bytes) -> Callable[[bytes], bytes]:
    return in_bytes(MANIFEST, lambda content: re.sub(rb'"runs":\[(.*?)]', runs, content))


def misplaced(offset: int) -> Callable[[bytes], bytes]:
    """The central directory says that a file begins beyond all that is there."""

    def change(archive: bytes) -> bytes:
        at = archive.index(b"PK\x01\x02") + 42
        return archive[:at] + offset.to_bytes(4, "little") + archive[at + 4 :]

    return change


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another run": (in_run(id="3"), "archive-invalid"),
    "an unknown field": (in_run(evil=1), "archive-invalid"),
    "a signature": (lambda a: edited(a, lambda whole: whole["about"].update(sign_offs=[])), "archive-invalid"),
    "no JSON": (in_bytes("runs/", lambda content: content[:-2]), "archive-invalid"),
    "deep JSON": (in_bytes("runs/", lambda content: b"[" * 100_000), "archive-invalid"),
    "no manifest": (lambda archive: changed(archive, lambda files: files.pop(MANIFEST)), "archive-invalid"),
    "another version": (in_bytes(MANIFEST, lambda c: c.replace(b'"version":3', b'"version":9')), "archive-invalid"),
    "another format": (in_bytes(MANIFEST, lambda c: c.replace(b"q36eval-history", b"another")), "archive-invalid"),
    "a run that is not there": (
        lambda archive: changed(archive, lambda files: files.pop(next(name for name in files if name < "s"))),
        "archive-invalid",
    ),
    "a run twice": (named(rb'"runs":[\1,\1]'), "archive-invalid"),
    "a run called latest": (named(rb'"runs":["latest"]'), "archive-invalid"),
    "a run outside": (named(rb'"runs":["../../x"]'), "archive-invalid"),
    "LZMA": (lambda archive: changed(archive, lambda _: None, zipfile.ZIP_LZMA), "archive-invalid"),
    "a file beyond the end": (misplaced(0xFFFFFFF0), "archive-invalid"),
    "256 MiB in little": (in_bytes("runs/", lambda content: content + b" " * (1 << 28)), "archive-invalid"),
    "a start in 2099": (in_run(started="2099-01-01T00:00:00Z"), "date-in-future"),
    "an end in 2099": (in_run(finished="2099-01-01T00:00:00Z"), "date-in-future"),
    "a verdict without an end": (in_run(state="running"), "archive-inconsistent"),
    "a verdict without a report": (in_run(report=None), "archive-inconsistent"),
    "a verdict without a policy": (in_run(policy=None), "run-without-verdict"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_one_sentence_and_nothing_is_imported(archive: bytes, tmp_path: Path, what: str) -> None:
    change, code = HOSTILE[what]
    file, state = tmp_path / "in.zip", tmp_path / "state"
    file.write_bytes(change(archive))
    with raises(UsageError, code) as refused:
        imported(state, file)
    assert "\n" not in str(refused.value)
    assert open_history(state).summaries() == []
    assert not (state / "tokens").exists()


@pytest.mark.long
def test_a_damaged_archive_imports_nothing(archive: bytes, tmp_path: Path) -> None:
    """Cut off anywhere, or with one bit turned anywhere."""
    history, file, rng = open_history(tmp_path), tmp_path / "runs.zip", random.Random(7)
    cut = [archive[: rng.randrange(len(archive))] for _ in range(20)]
    turned = []
    for _ in range(40):
        place = rng.randrange(len(archive))
        turned.append(archive[:place] + bytes([archive[place] ^ 1 << rng.randrange(8)]) + archive[place + 1 :])
    for damaged in (b"", b"PK", *cut, *turned):
        file.write_bytes(damaged)
        try:
            imported(tmp_path, file)
        except UsageError:
            assert history.summaries() == []
        else:  # a bit that nothing is read from, such as a file's date
            whole = whole_run(history, history.summaries()[0].id)
            history.delete_run(whole.run.id)
            assert whole.about.earlier_decisions
            assert len(whole.items) == 403


def test_a_pipe_is_no_archive_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.zip")
    with raises(UsageError, "file-not-regular"):
        imported(tmp_path / "state", tmp_path / "runs.zip")


def test_an_archive_that_is_changed_while_it_is_read_leaves_nothing(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the whole and the writing of its run."""
    file, state = tmp_path / "runs.zip", tmp_path / "state"
    file.write_bytes(archive)
    keep = Reader.keep_files

    def then_changed(reader: Reader, run_id: str, folder: Path) -> None:
        keep(reader, run_id, folder)
        with zipfile.ZipFile(io.BytesIO(archive)) as whole:
            (info,) = (info for info in whole.infolist() if info.filename.startswith("runs/"))
        with file.open("r+b") as changing:
            changing.seek(info.header_offset + 200)
            changing.write(b"\xff" * 40)

    monkeypatch.setattr(Reader, "keep_files", then_changed)
    with raises(UsageError, "archive-invalid"):
        imported(state, file)
    assert open_history(state).summaries() == []


# -- what an import keeps and what it does not


@pytest.mark.long
def test_what_people_decided_stays_where_they_decided_it(tmp_path: Path) -> None:
    """A FAIL that a waiver turned to PASS, blessed and signed, is a FAIL elsewhere; the PASS is kept as a decision."""
    here, there = tmp_path / "here", tmp_path / "there"
    _, run = fill(here)
    assert run.verdict is Verdict.PASS
    other = open_history(there)
    came = imported(there, exported(here))
    arrived = other.get_run(run.id)
    assert (arrived.verdict, arrived.imported is not None) == (Verdict.FAIL, True)
    assert [one.report.verdict for one in other.earlier_decisions(run.id)][-1] is Verdict.PASS
    assert "waivers of another history do not count here" in came.says[0]
    assert (other.waiver_records(), other.sign_offs(run.id), other.blessings_of_run(run.id)) == ([], [], [])


@pytest.mark.long
def test_a_signature_under_another_history_s_run_is_given_again(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 0, DAY, require_sign_off=True, items=items_of(0))
    sign(history, run, "mallory", "trust me")
    run = again(history, run.id)
    assert run.verdict is Verdict.PASS
    (sentence,) = imported(there, exported(here)).says
    assert "INCONCLUSIVE, awaiting sign-off (signatures of another history do not count here)" in sentence
    other = open_history(there)
    assert again(other, run.id).verdict is Verdict.INCONCLUSIVE
    sign(other, other.get_run(run.id), "eva", "read it here")
    assert again(other, run.id).verdict is Verdict.PASS


def again(history: History, run_id: str) -> RunRecord:
    """The run decided as of today, for which a sign-off is required."""
    run = history.get_run(run_id)
    return decide_again(history, run, family="sandbox", branch="main", policy=None, on=datetime.now(UTC).date())


@pytest.mark.long
def test_a_report_that_its_evidence_does_not_give_is_told_and_not_kept(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    good = judge_run(history, 0, DAY)
    bad = judge_run(history, 80, DAY, items=items_of(80))
    passing = json.loads(good.report.model_dump_json())
    file = exported(here, bad.id)
    file.write_bytes(edited(file.read_bytes(), lambda whole: whole["run"].update(report=passing, verdict="PASS")))
    (sentence,) = imported(there, file).says
    why = "its report is not of its evidence"
    assert sentence == f"Run {bad.id}: the archive says PASS, its evidence gives FAIL ({why}); FAIL is kept."
    assert [run.verdict for run in open_history(there).summaries()] == [Verdict.FAIL]
    assert commands.q36eval("history", "show", bad.id, "--replay", state=there).returncode == 0
