"""What an archive from anybody may claim: refused in one sentence, in little memory, and nothing of it stays."""

import io
import json
import multiprocessing
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.app.history.import_export import take_in
from q36eval.errors import UsageError
from q36eval.history import History
from tests.app.history.filled import fill
from tests.app.history.test_importing import archive_of
from tests.app.history.test_moving import changed, editing
from tests.app.judged_runs import open_history

MIB = 1 << 20


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = tmp_path_factory.mktemp("state")
    return archive_of(state, *fill(state)).read_bytes()


def packed(archive: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """The archive with its files changed and packed as an export packs them."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(changed(archive, change))) as plain, zipfile.ZipFile(target, "w") as small:
        for name in plain.namelist():
            small.writestr(name, plain.read(name), zipfile.ZIP_DEFLATED)
    return target.getvalue()


def refused(file: Path, state: Path) -> tuple[str, float]:
    """What the import of the archive says, and the most memory that it took beyond what the program has anyway."""
    history = open_history(state)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError) as error:
        take_in(history, state, file)
    assert (history.summaries(), (state / "artifacts").exists()) == ([], False)
    return str(error.value), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.long
def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_is_read(archive: bytes, tmp_path: Path) -> None:
    """One megabyte that claims a gigabyte, as one line or as many; measured in a process of its own."""
    for name, line in (("one-line", b"0" * MIB), ("lines", b"{}" + b" " * (MIB - 3) + b"\n")):
        target = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
            for info in old.infolist():
                with new.open(info.filename, "w", force_zip64=True) as part:
                    part.write(old.read(info))
                    for _ in range(1024 if info.filename.endswith("items.jsonl") else 0):
                        part.write(line)
        file = tmp_path / f"{name}.zip"
        file.write_bytes(target.getvalue())
        assert file.stat().st_size < 2 * MIB
        with multiprocessing.get_context("fork").Pool(1) as pool:
            sentence, mebibytes = pool.apply(refused, (file, tmp_path / name))
        assert "more than any export of its size" in sentence
        assert mebibytes < 50, f"{mebibytes:.0f} MiB"


@pytest.mark.long
def test_as_much_as_may_be_claimed_is_read_in_little_memory(archive: bytes, tmp_path: Path) -> None:
    """A hundred megabytes of items, which are refused only at the last one."""
    with zipfile.ZipFile(io.BytesIO(archive)) as whole:
        (name,) = (name for name in whole.namelist() if name.endswith("items.jsonl"))
        one = json.loads(whole.read(name).splitlines()[0])
    line = json.dumps(one | {"prompt": "x" * 100_000}).encode() + b"\n"
    file = tmp_path / "runs.zip"
    file.write_bytes(packed(archive, editing("items.jsonl", lambda content: content + line * 600 + b"{}\n")))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        sentence, mebibytes = pool.apply(refused, (file, tmp_path / "state"))
    assert "items.jsonl, line 1004 cannot be read" in sentence
    assert mebibytes < 100, f"{mebibytes:.0f} MiB"


@pytest.mark.long
def test_deep_json_is_one_sentence(archive: bytes, tmp_path: Path) -> None:
    file = tmp_path / "runs.zip"
    file.write_bytes(packed(archive, editing("about.json", lambda content: content + b"[" * 100_000)))
    sentence, _ = refused(file, tmp_path / "state")
    assert "about.json, line 2 cannot be read" in sentence
    assert "\n" not in sentence


def test_a_pipe_is_no_archive_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.zip")
    assert "it is no file" in refused(tmp_path / "runs.zip", tmp_path / "state")[0]


def test_an_archive_that_is_changed_while_it_is_read_leaves_nothing(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the whole and the writing of its run."""
    file, state = tmp_path / "runs.zip", tmp_path / "state"
    file.write_bytes(archive)
    history = open_history(state)
    from q36eval.app.history import import_export

    note = import_export.RunFiles.note

    def then_changed(files: import_export.RunFiles, history: History) -> None:
        note(files, history)
        with zipfile.ZipFile(io.BytesIO(archive)) as whole:
            (info,) = (info for info in whole.infolist() if info.filename.endswith("items.jsonl"))
        with file.open("r+b") as changing:
            changing.seek(info.header_offset + 200)
            changing.write(b"\xff" * 40)

    monkeypatch.setattr(import_export.RunFiles, "note", then_changed)
    with pytest.raises(UsageError, match="cannot be imported"):
        take_in(history, state, file)
    assert history.summaries() == []
