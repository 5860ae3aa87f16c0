"""Where a branch's folder is looked for that a family file names by a relative path."""

from pathlib import Path

import yaml

from q36eval.app.targets import checkpoint_bytes, load_family, resolve
from q36eval.config import Paths
from q36eval.errors import UsageError
from tests.raising import raises

REPOSITORY = Path(__file__).parents[2]
SHIPPED = REPOSITORY / "data" / "families" / "sandbox.yaml"


def test_beside_the_family_file_first_and_then_where_the_data_lie(tmp_path: Path) -> None:
    """A copy of the shipped file goes on naming what ships; a team's own folder lies beside its file."""
    body = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    body["branches"]["main"]["source"] = {"path": "ours"}
    (tmp_path / "family.yaml").write_text(yaml.safe_dump(body))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    paths = Paths(REPOSITORY, tmp_path / "state")
    family = load_family(str(tmp_path / "family.yaml"), paths)
    assert resolve("main", family, paths).folder == tmp_path / "ours"
    assert resolve("bf16", family, paths).folder == REPOSITORY / "data" / "sandbox" / "bf16"


def test_a_branch_may_be_a_gguf_file_and_so_may_a_path(tmp_path: Path) -> None:
    golden = REPOSITORY / "tests" / "assets" / "ggufs" / "bf16.gguf"
    (tmp_path / "ours.gguf").write_bytes(golden.read_bytes())
    body = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    body["branches"]["main"]["source"] = {"path": "ours.gguf"}
    body["branches"]["main"]["scheme"] = "Q4_K + Q6_K"
    (tmp_path / "family.yaml").write_text(yaml.safe_dump(body))
    paths = Paths(REPOSITORY, tmp_path / "state")
    family = load_family(str(tmp_path / "family.yaml"), paths)
    assert resolve("main", family, paths).folder == tmp_path / "ours.gguf"
    named = resolve(str(tmp_path / "ours.gguf"), family, paths)
    assert (named.name, named.folder) == ("ours.gguf", tmp_path / "ours.gguf")
    assert checkpoint_bytes(named.folder) == golden.stat().st_size
    with raises(UsageError, "branch-unknown", "other.gguf"):
        resolve(str(tmp_path / "other.gguf"), family, paths)
