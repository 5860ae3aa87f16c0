"""The commit of a run is that of the program's own repository, or not known."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from q36eval import provenance as provenance_module
from q36eval.provenance import code_commit

REPOSITORY = Path(__file__).parents[2]


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
    said: dict[str, Any] = {
        "url": "https://git.example.org/q36eval",
        "vcs_info": {"vcs": "git", "commit_id": "ab" * 20},
    }
    monkeypatch.setattr(provenance_module, "installed_from", lambda: said)
    assert code_commit(tmp_path) == ("ab" * 20, False)


def test_without_git_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_commit(REPOSITORY) == (None, None)
