"""Where data and state lie: of a checkout, of an installed package, and by name.

The commit of a run is that of the program's own repository, or not known.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from q36eval import provenance as provenance_module
from q36eval.config import paths as paths_module
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.provenance import code_commit
from tests.raising import raises

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
