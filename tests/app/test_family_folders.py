"""Where a branch's folder is looked for that a family file names by a relative path."""

from pathlib import Path

import pytest
import yaml

from q36eval.app.targets import load_family, name_in_history, resolve
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from tests.raising import raises

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "data" / "families" / "sandbox.yaml"


def family_of(folder: Path, paths: Paths, **main: object) -> Family:
    """A copy of the shipped family's file in that folder, which says something else of `main`."""
    body = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    body["branches"]["main"] |= main
    (folder / "family.yaml").write_text(yaml.safe_dump(body))
    return load_family(str(folder / "family.yaml"), paths)


def test_beside_the_family_file_first_and_then_where_the_data_lie(tmp_path: Path) -> None:
    """A copy of the shipped file goes on naming what ships; a team's own folder lies beside its file."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    paths = Paths(REPOSITORY, tmp_path / "state")
    family = family_of(tmp_path, paths, source={"path": "ours"})
    assert resolve("main", family, paths).folder == tmp_path / "ours"
    assert resolve("bf16", family, paths).folder == REPOSITORY / "data" / "sandbox" / "bf16"


def test_a_branch_may_be_a_gguf_file_and_so_may_a_path(tmp_path: Path) -> None:
    golden = REPOSITORY / "tests" / "assets" / "ggufs" / "bf16.gguf"
    (tmp_path / "ours.gguf").write_bytes(golden.read_bytes())
    paths = Paths(REPOSITORY, tmp_path / "state")
    family = family_of(tmp_path, paths, source={"path": "ours.gguf"}, scheme="Q4_K + Q6_K")
    assert resolve("main", family, paths).folder == tmp_path / "ours.gguf"
    named = resolve(str(tmp_path / "ours.gguf"), family, paths)
    assert (named.name, named.folder) == (str(tmp_path / "ours.gguf"), tmp_path / "ours.gguf")
    with raises(UsageError, "branch-unknown", "other.gguf"):
        resolve(str(tmp_path / "other.gguf"), family, paths)


def test_a_folder_goes_by_its_path_and_a_link_by_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one that is called like a published branch, whose runs and waivers are not its own."""
    paths = Paths(REPOSITORY, tmp_path / "state")
    family = load_family("sandbox", paths)
    for folder in ("a/release", "b/release", "builds/2"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "c").symlink_to("a")
    (tmp_path / "newest").symlink_to("builds/2")
    monkeypatch.chdir(tmp_path / "a")
    named = {
        "release": "a/release",
        "./release/": "a/release",
        "../c/release": "a/release",
        "release/..": "a",
        ".": "a",
        "../b/release": "b/release",
        "../newest": "newest",
        "./main": "a/main",
    }
    assert {name: name_in_history(name, family, paths) for name in named} == {
        name: str(tmp_path / path) for name, path in named.items()
    }
    assert name_in_history("main", family, paths) == "main"
    assert name_in_history("missing", family, paths) == "missing"
