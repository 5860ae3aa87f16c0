"""Whole runs from one history into another: the same to the byte, nothing overwritten, nothing in half."""

import io
import json
import random
import re
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.app.history.import_export import take_in
from q36eval.errors import UsageError
from q36eval.history.archive import MANIFEST
from q36eval.history.run_files import RunFiles
from q36eval.history.run_transfer import put_run, whole_run
from q36eval.records import ProbeName
from q36eval.token_files import TOKENS
from tests import commands, forked
from tests.app.history.filled import DAY, WAIVER, fill, keep_files, outcome
from tests.app.judged_runs import items_of, judge_run, open_history


def exported(state: Path, *arguments: str) -> Path:
    file = state / "runs.zip"
    done = commands.q36eval("history", "export", *(arguments or ("--all",)), "--out", str(file), state=state)
    assert done.returncode == 0, done.stderr
    return file


@pytest.mark.long
def test_a_run_goes_whole_and_comes_out_the_same_to_the_byte(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 80, DAY, items=items_of(80))
    keep_files(here, history, run, b"tokens")
    archive = exported(here, run.id)
    done = commands.q36eval("history", "import", str(archive), "--json", state=there)
    (said,) = json.loads(done.stdout)
    assert (said["added"], said["known"], said["verdicts_differ"]) == ([run.id], [], [])
    other = open_history(there)
    assert whole_run(other, run.id) == whole_run(history, run.id)
    tokens = RunFiles(there).find(other, run.id, TOKENS)
    assert tokens is not None
    assert tokens.read_bytes() == b"tokens"
    assert exported(there).read_bytes() == archive.read_bytes()
    assert commands.q36eval("history", "show", run.id, "--replay", state=there).returncode == 0


@pytest.mark.long
def test_what_is_there_is_passed_over_but_for_files_that_it_lacks(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 80, DAY, items=items_of(80))
    other = open_history(there)
    take_in(other, there, exported(here))
    newest = other.bless(run.id, "jan", "the last word")
    keep_files(here, history, run, b"tokens")
    came = take_in(other, there, exported(here))
    assert (came.added, came.known) == ((), (run.id,))
    assert other.blessings("main") == [newest]
    assert other.artifacts(run.id) == history.artifacts(run.id)
    assert RunFiles(there).find(other, run.id, TOKENS) is not None


@pytest.mark.long
def test_another_decision_stays_what_it_is_here_and_another_content_is_refused(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 80, DAY, items=items_of(80))
    early = exported(here).rename(tmp_path / "early.zip")
    other = open_history(there)
    take_in(other, there, early)
    assert run.report is not None
    assert run.circumstances is not None
    history.decide_again(run.id, run.report, run.circumstances.model_copy(update={"waivers": (WAIVER,)}))
    assert take_in(other, there, exported(here)).known == (run.id,)
    assert other.get_run(run.id).circumstances == run.circumstances
    judge_run(history, 0, DAY, items=items_of(0))
    other.add_items(run.id, [outcome("new", 0.0)])
    with pytest.raises(UsageError, match=r"another content .*\(its items"):
        take_in(other, there, exported(here))
    assert [one.id for one in other.summaries()] == [run.id]  # nor did the run that is new come in


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = tmp_path_factory.mktemp("state")
    fill(state)
    return exported(state).read_bytes()


def changed(archive: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """The archive with its files changed."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        files = {name: old.read(name) for name in old.namelist()}
    change(files)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as new:
        for name, content in files.items():
            new.writestr(name, content)
    return target.getvalue()


def editing(part: str, edit: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    """A change of one file of an archive."""

    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.endswith(part))
        before = files[name]
        files[name] = edit(before)
        assert files[name] != before

    return change


def replacing(part: str, old: bytes, new: bytes) -> Callable[[dict[str, bytes]], None]:
    return editing(part, lambda content: content.replace(old, new))


HOSTILE: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "misnamed": (lambda files: files.update({"artifacts/" + "0" * 64: b"x"}), "another content than its name"),
    "another run": (replacing("run.json", b'"id":"2', b'"id":"3'), "is of another run"),
    "unknown field": (replacing("run.json", b'"timings":', b'"evil":1,"timings":'), "cannot be read (at evil"),
    "no JSON": (replacing("items.jsonl", b'{"probe"', b'{"probe'), "line 1 cannot be read"),
    "nothing": (lambda files: files.clear(), "it is no archive of runs"),
    "newer": (replacing(MANIFEST, b'"version":2', b'"version":9'), "a newer q36eval wrote it"),
    "older": (replacing(MANIFEST, b'"version":2', b'"version":1'), "an older q36eval wrote it (version 1)"),
    "not ours": (replacing(MANIFEST, b"q36eval-history", b"another"), "cannot be read (at format"),
    "lost": (lambda files: files.pop(next(n for n in files if n.endswith("items.jsonl"))), "items.jsonl is damaged"),  # type: ignore[dict-item, return-value]
}
HOSTILE |= {
    f"{times} of {part}": (
        editing(part, lambda content, times=times: content * times),
        f"{part} holds {times} records instead of one",
    )
    for part in ("run.json", "about.json")
    for times in (0, 2)
}
HOSTILE |= {
    what: (editing(MANIFEST, lambda content, names=names: re.sub(rb'"runs":\[(.*?)]', names, content)), needle)
    for what, names, needle in (
        ("twice", rb'"runs":[\1,\1]', "names a run twice"),
        ("latest", rb'"runs":["latest"]', "as no run can be called"),
    )
}


@pytest.mark.long
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_one_sentence_and_nothing_is_imported(archive: bytes, tmp_path: Path, what: str) -> None:
    change, needle = HOSTILE[what]
    file = tmp_path / "in" / "runs.zip"
    file.parent.mkdir()
    file.write_bytes(changed(archive, change))
    state = tmp_path / "in" / "state"
    done = commands.q36eval("history", "import", str(file), state=state)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert needle in done.stderr
    assert open_history(state).summaries() == []
    assert not (state / "artifacts").exists()


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
            take_in(history, tmp_path, file)
        except UsageError:
            assert history.summaries() == []
        else:  # a bit that nothing is read from, such as a file's date
            whole = whole_run(history, history.summaries()[0].id)
            history.delete_run(whole.run.id)
            assert whole.about.earlier_decisions
            assert len(whole.items) == 403


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_what_no_export_packs_is_not_unpacked(archive: bytes, tmp_path: Path, packing: int) -> None:
    """Their decoders fail with errors of their own, and may claim gigabytes for a dictionary."""
    file = tmp_path / "runs.zip"
    with zipfile.ZipFile(io.BytesIO(archive)) as whole, zipfile.ZipFile(file, "w", packing) as other:
        for name in whole.namelist():
            other.writestr(name, whole.read(name))
    history = open_history(tmp_path)
    with pytest.raises(UsageError, match="no export packs files in that way"):
        take_in(history, tmp_path, file)


def test_a_place_in_the_file_that_is_none_is_a_sentence(archive: bytes, tmp_path: Path) -> None:
    """Where the central directory says that a file begins beyond all that is there."""
    history, file = open_history(tmp_path), tmp_path / "runs.zip"
    at = archive.index(b"PK\x01\x02") + 42
    for offset in (len(archive) - 4, 0xFFFFFFF0):
        file.write_bytes(archive[:at] + offset.to_bytes(4, "little") + archive[at + 4 :])
        with pytest.raises(UsageError, match="cannot be imported"):
            take_in(history, tmp_path, file)


def test_a_run_that_no_column_holds_leaves_nothing_behind(tmp_path: Path) -> None:
    history, run = fill(tmp_path)
    whole = whole_run(history, run.id)
    history.delete_run(run.id)
    twice = whole.model_copy(update={"run": run.model_copy(update={"id": "x"})})
    huge = whole.measurements[0].counts.model_copy(update={"scored": 1 << 70})
    measurements = (whole.measurements[0].model_copy(update={"counts": huge}),)
    with pytest.raises(UsageError, match="values that history cannot store"):
        put_run(history, twice.model_copy(update={"measurements": measurements}), imported=None)
    assert history.summaries() == []
    put_run(history, whole, imported=None)
    with pytest.raises(UsageError, match="already"):
        put_run(history, whole, imported=None)
    assert len(history.items(run.id, ProbeName.EVALS)) == 203


@pytest.mark.long
def test_an_export_says_what_it_would_need(tmp_path: Path) -> None:
    _, run = fill(tmp_path)
    for arguments, needle in (
        (("--out", "x.zip"), "Name the runs"),
        ((run.id,), "--out"),
        ((run.id, "--all", "--out", "x.zip"), "not both"),
        (("--branch", "mian", "--out", "x.zip"), "there is: main"),
        (("--all", "--out", str(tmp_path / "no" / "x.zip")), "could not be written"),
    ):
        done = commands.q36eval("history", "export", *arguments, state=tmp_path)
        assert done.returncode in (2, 4), arguments
        assert needle in done.stderr
        assert done.stderr.count("\n") == 1
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
        assert done.returncode == 0, done.stdout + done.stderr
        if any(each["id"] == run.id for each in json.loads(done.stdout)["runs"]):
            assert whole_run(open_history(there), run.id) == whole_run(open_history(here), run.id)
    assert killed, "every import ended before it was killed"
    assert commands.q36eval("history", "import", str(archive), state=there).returncode == 0
    other = open_history(there)
    assert whole_run(other, run.id) == whole_run(open_history(here), run.id)
