"""Where a branch's folder is looked for that a family file names by a relative path."""

from pathlib import Path

import yaml

from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths

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
