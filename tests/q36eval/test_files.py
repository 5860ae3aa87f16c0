"""YAML refused in one sentence, files that are there whole or as they were, JSON that hashes as it always did."""

import errno
import hashlib
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from q36eval import provenance as provenance_module
from q36eval.config import paths as paths_module
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.files import (
    YamlProblem,
    canonical_json,
    json_sha256,
    parse_yaml,
    printable_json,
    read_yaml,
    replacing,
    write_atomically,
)
from q36eval.provenance import code_commit
from q36eval.references._files import write_whole
from tests.raising import failing, raises


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")

    left: int
    right: int = 0


@pytest.mark.parametrize(
    ("text", "problem", "line", "refused"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' is given twice", 3, True),
        ("a:\n  - {b: 1,\n     b: 2}\n", "'b' is given twice", 3, True),
        ("a: &x {b: 1}\nc: {<<: *x, d: 1, d: 2}\n", "'d' is given twice", 2, True),
        ("\n" + "[" * 61 + "]" * 61, "60 levels", 2, True),
        ("a: b\n  c: [", "", 2, False),
        ("day: 2026-02-31\n", "ValueError: day", None, False),
        ("a: \x00", "", None, False),
        ("a: !!python/object/apply:os.getcwd []\n", "could not determine a constructor", 1, False),
    ],
    ids=["twice", "twice in a list", "twice beside a merge", "deep", "syntax", "no day", "no text", "python object"],
)
def test_what_is_not_accepted_says_why_and_where(text: str, problem: str, line: int | None, refused: bool) -> None:
    with pytest.raises(YamlProblem) as caught:
        parse_yaml(text)
    assert problem in caught.value.problem
    assert (caught.value.line, caught.value.refused) == (line, refused)


def test_an_alias_is_read_unless_none_may_stand_there() -> None:
    text = "a: &x [1, 2]\nb: *x\n"
    assert parse_yaml(text) == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(YamlProblem, match=r"line 2: an alias \(\*x\) stands here"):
        parse_yaml(text, aliases=False)
    around = parse_yaml("&x [*x]")  # of itself: it ends, whatever it is good for
    assert around[0] is around
    assert parse_yaml("") is None


def test_a_file_that_a_person_wrote_is_refused_in_a_sentence_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    with raises(UsageError, "file-missing", "pair", file):
        read_yaml(file, Pair, "pair file")
    for text, code, value in (
        ("left: 1\nleft: 2\n", "yaml-malformed", f"{file}:2"),
        ("left: one\n", "file-invalid", f"{file} is wrong at left"),
        ("left: 1\nmiddle: 2\n", "file-invalid", "middle: unknown key; valid keys there are left, right"),
        ("- 1\n", "file-invalid", "the top level"),
    ):
        file.write_text(text, encoding="utf-8")
        with raises(UsageError, code, value):
            read_yaml(file, Pair, "pair file")
    file.write_bytes("left: č".encode("cp1250"))
    with raises(UsageError, "file-unreadable"):
        read_yaml(file, Pair, "pair file")
    file.write_text("left: 1\n", encoding="utf-8")
    assert read_yaml(file, Pair, "pair file") == Pair(left=1)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path, durable: bool, linked: bool) -> None:
    file = tmp_path / "kept"
    if linked:
        (tmp_path / "elsewhere").mkdir()
        file.symlink_to(tmp_path / "elsewhere" / "file")
    write_atomically(file, "one\r\n", durable=durable)
    assert file.is_symlink() is linked
    assert file.read_bytes() == b"one\r\n"
    file.chmod(0o640)
    write_atomically(file, b"\xff\x00", durable=durable)
    assert file.read_bytes() == b"\xff\x00"
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in file.resolve().parent.iterdir()] == [file.resolve().name]


def test_where_writing_fails_the_file_stays_as_it_was_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("before")

    def fail() -> None:
        with replacing(file) as temporary:
            assert temporary.parent == tmp_path
            temporary.write_text("half")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_link_in_a_folder_from_elsewhere_is_replaced_itself(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("not ours")
    pack = tmp_path / "pack"
    pack.mkdir()
    for name, place in (("a", tmp_path / "outside"), ("b", tmp_path / "nowhere"), ("c", Path(os.devnull))):
        (pack / name).symlink_to(place)
        write_whole(pack / name, b"ours")
        assert not (pack / name).is_symlink()
        assert (pack / name).read_bytes() == b"ours"
    assert (tmp_path / "outside").read_text() == "not ours"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_system_without_permissions_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.copymode", failing(PermissionError("Operation not permitted")))
    for text in ("first", "second"):
        write_atomically(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "second"


def test_a_pipe_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_the_spellings_that_hashes_were_made_of_stay_what_they_are() -> None:
    value = {"ž": [1, 2.5, None, True], "a": {"z": "", "b": "##[error]"}}
    assert canonical_json(value) == '{"a": {"b": "##[error]", "z": ""}, "\\u017e": [1, 2.5, null, true]}'
    assert canonical_json(value, ascii_only=False) == '{"a": {"b": "##[error]", "z": ""}, "ž": [1, 2.5, null, true]}'
    compact = '{"a":{"b":"##[error]","z":""},"ž":[1,2.5,null,true]}'
    assert canonical_json(value, ascii_only=False, compact=True) == compact
    assert canonical_json({"b": 1, "a": 2}, indent=1) == '{\n "a": 2,\n "b": 1\n}'
    assert canonical_json({"a": Path("x")}, default=str) == '{"a": "x"}'
    assert json_sha256(value) == hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert json_sha256([1, "a"]) == "4a72386a027702c1f4fdf182d13b71437ba1606b177123eb73a11eb0bd2feeb8"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": number})


def test_what_is_printed_commands_neither_a_terminal_nor_a_pipelines_runner() -> None:
    text = printable_json({"b": "##[error]\x1b[2J", "a": "ž"}, indent=1)
    assert text == '{\n "a": "\\u017e",\n "b": "#\\u0023[error]\\u001b[2J"\n}\n'


def test_a_mounted_file_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container's report that is mounted alone: nothing can take the place of a mount point."""
    report = tmp_path / "report.json"
    report.write_text("old and longer", encoding="utf-8")
    monkeypatch.setattr(os, "replace", failing(OSError(errno.EBUSY, "Device or resource busy")))
    write_atomically(report, "new")
    assert report.read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [report]


# -- where data and state are, and which commit a program is of


REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which nothing lies, with no state named."""
    monkeypatch.delenv("Q36EVAL_STATE", raising=False)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as pip lays it out, with its data inside and no repository around."""
    package = tmp_path / "site-packages" / "q36eval"
    (package / "data" / "policies").mkdir(parents=True)
    monkeypatch.setattr(paths_module, "files", lambda name: package)
    return package


def test_a_checkout_keeps_its_own_state(elsewhere: Path) -> None:
    paths = Paths.default()
    assert (paths.repository, paths.data) == (REPOSITORY, REPOSITORY / "data")
    assert (paths.state, paths.sandbox) == (REPOSITORY / ".q36eval", REPOSITORY / "data" / "sandbox")
    assert paths.state_because == "the program runs from this checkout"


def test_an_installed_program_keeps_its_state_out_of_site_packages(
    elsewhere: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("platformdirs")
    monkeypatch.setenv("XDG_DATA_HOME", str(elsewhere / "of-the-user"))
    paths = Paths.default()
    assert paths.data == installed / "data"
    assert paths.state == elsewhere / "of-the-user" / "q36eval"
    assert paths.state_because == "it is this user's data folder"
    assert paths.frozen("tasks", "release") == paths.state / "frozen" / "tasks" / "release"
    (installed / "data" / "tasks" / "sandbox").mkdir(parents=True)
    assert paths.frozen("tasks", "sandbox") == installed / "data" / "tasks" / "sandbox"


def test_a_state_in_the_current_folder_comes_before_those_and_a_named_one_before_all(
    elsewhere: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / ".q36eval").mkdir()
    assert Paths.default().state == elsewhere / ".q36eval"
    monkeypatch.setenv("Q36EVAL_STATE", "~/of-mine")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Paths.default().state == Path("/home/somebody/of-mine")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give a folder away")
def test_another_users_state_in_a_shared_folder_is_not_taken_unasked(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = elsewhere / ".q36eval"
    local.mkdir()
    os.chown(local, 12345, 12345)
    with raises(UsageError, "state-of-another-user", ".q36eval"):
        Paths.default()
    monkeypatch.setenv("Q36EVAL_STATE", ".q36eval")
    assert Paths.default().state == Path(".q36eval")


def test_a_package_without_its_data_is_refused(elsewhere: Path, installed: Path) -> None:
    (installed / "data" / "policies").rmdir()
    with raises(UsageError, "installation-incomplete", "site-packages/q36eval/data"):
        Paths.default()


def repository_at(folder: Path) -> str:
    """A repository with one commit, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", folder.name], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_tells_its_own_commit_even_in_a_hook_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = repository_at(tmp_path / "own"), repository_at(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert code_commit(tmp_path / "own") == (own, False)
    assert own != other


def test_a_repository_around_site_packages_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository_at(tmp_path)
    package = tmp_path / ".venv" / "lib" / "site-packages" / "q36eval"
    package.mkdir(parents=True)
    monkeypatch.setattr(provenance_module, "installed_from", dict)
    assert code_commit(package) == (None, None)


def test_an_installation_from_git_knows_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version: dict[str, Any] = {"vcs": "git", "commit_id": "ab" * 20}
    said = {"url": "https://git.example.org/q36eval", "vcs_info": version}
    monkeypatch.setattr(provenance_module, "installed_from", lambda: said)
    assert code_commit(tmp_path) == ("ab" * 20, False)


def test_without_git_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_commit(REPOSITORY) == (None, None)
