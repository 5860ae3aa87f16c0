"""What an archive from anybody may hold and claim: refused in one sentence, and nothing of it stays."""

import io
import os
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q36eval.errors import UsageError
from q36eval.history.archive import MANIFEST, Reader
from q36eval.history.run_transfer import whole_run
from tests.app.history.filled import fill
from tests.app.history.test_moving import changed, edited, exported, imported
from tests.app.judged_runs import open_history
from tests.raising import raises


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
