"""What an archive from anybody may claim: refused in one sentence, in little memory, and nothing of it stays."""

import io
import json
import multiprocessing
import os
import resource
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from q36eval.app.history.import_export import take_in
from q36eval.errors import UsageError
from q36eval.history import History
from q36eval.history.archive import MANIFEST, Limits
from tests.app.history.filled import fill
from tests.app.history.test_authority import archive_of
from tests.app.history.test_moving import changed
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


def growing(part: str, content: bytes) -> Callable[[dict[str, bytes]], None]:
    def change(files: dict[str, bytes]) -> None:
        files[next(name for name in files if name.endswith(part))] += content

    return change


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
    file.write_bytes(packed(archive, growing("items.jsonl", line * 600 + b"{}\n")))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        sentence, mebibytes = pool.apply(refused, (file, tmp_path / "state"))
    assert "items.jsonl, line 1004 cannot be read" in sentence
    assert mebibytes < 100, f"{mebibytes:.0f} MiB"


def repeat_lines(files: dict[str, bytes], name: str, times: int) -> None:
    files[name] *= times


SMALL = Limits(
    files=10, line_bytes=200_000, measurements_bytes=300_000, unpacked_bytes=2_000_000, ratio=0, decisions=10
)

BEYOND = {
    "a long line": (growing("items.jsonl", b'{"x": "' + b"y" * MIB + b'"}\n'), "has a line longer than any export's"),
    "many measurements": (growing("measurements.jsonl", b" " * 400_000), "measurements.jsonl is larger than any"),
    "many files": (
        lambda files: files.update({f"artifacts/{n:064}": b"" for n in range(20)}),
        "it holds 28 files, more than any export",
    ),
    "much in all": (growing("about.json", b" " * 3_000_000), "more than any export of its size"),
    "many waivers": (
        lambda files: repeat_lines(files, "waivers.json", 20),
        "waivers.json holds more than 10 decisions",
    ),
    "deep JSON": (growing("about.json", b"[" * 100_000), "about.json, line 2 cannot be read"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", BEYOND)
def test_what_claims_more_than_an_export_is_one_sentence(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change, needle = BEYOND[what]
    monkeypatch.setattr("q36eval.history.archive.LIMITS", SMALL)
    file = tmp_path / "runs.zip"
    file.write_bytes(packed(archive, change))
    sentence, _ = refused(file, tmp_path / "state")
    assert needle in sentence, sentence
    assert "\n" not in sentence


def test_a_manifest_larger_than_any_is_refused_before_it_is_read(archive: bytes, tmp_path: Path) -> None:
    file = tmp_path / "runs.zip"
    file.write_bytes(changed(archive, growing(MANIFEST, b" \n" * 10_000), consistent=False))
    assert "manifest.json is larger than any export's" in refused(file, tmp_path / "state")[0]


def test_a_pipe_is_no_archive_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.zip")
    assert "it is no file" in refused(tmp_path / "runs.zip", tmp_path / "state")[0]


def test_links_folders_and_names_that_stand_twice_are_refused(archive: bytes, tmp_path: Path) -> None:
    def written(name: str, mode: int) -> Path:
        file = tmp_path / "runs.zip"
        with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(file, "w") as new:
            for info in old.infolist():
                new.writestr(info.filename, old.read(info))
            odd = zipfile.ZipInfo(name)
            odd.external_attr = mode << 16
            new.writestr(odd, "/etc/passwd")
        return file

    for name, mode, needle in (
        ("artifacts/" + "0" * 64, stat.S_IFLNK | 0o777, "it holds a link or a folder"),
        ("artifacts/", stat.S_IFDIR | 0o755, "it holds a link or a folder"),
        ("artifacts/" + "0" * 64, stat.S_IFIFO | 0o644, "it holds a link or a folder"),
        ("waivers.json", 0o644, "it holds a file twice"),
        ("/etc/passwd", 0o644, "no export writes a file '/etc/passwd'"),
        (MANIFEST, 0o644, "it is no archive of runs"),
    ):
        sentence, _ = refused(written(name, mode), tmp_path / "state")
        assert needle in sentence, sentence


def test_an_archive_that_is_changed_while_it_is_read_leaves_nothing(
    archive: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the whole and the writing of its run."""
    file, state = tmp_path / "runs.zip", tmp_path / "state"
    file.write_bytes(archive)
    history, note = open_history(state), History.decisions_by_people
    from q36eval.app.history import import_export

    check = import_export.check_waiver_dates

    def then_changed(waivers: object) -> None:
        check(waivers)  # type: ignore[arg-type]
        with zipfile.ZipFile(io.BytesIO(archive)) as whole:
            (info,) = (info for info in whole.infolist() if info.filename.endswith("items.jsonl"))
        with file.open("r+b") as changing:
            changing.seek(info.header_offset + 200)
            changing.write(b"\xff" * 40)

    monkeypatch.setattr(import_export, "check_waiver_dates", then_changed)
    with pytest.raises(UsageError, match="cannot be imported"):
        take_in(history, state, file)
    assert (history.summaries(), note(history)) == ([], [])
