"""Which lanes a gate judges: those that the family's file names for the branch, or those of `--lane`."""

import json
from pathlib import Path

import pytest
import yaml

from tests import commands

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("named", "options", "judged"),
    [
        (["structured", "freeform"], [], ["structured", "freeform"]),
        (["freeform"], [], ["freeform"]),
        (["freeform"], ["--lane", "structured"], ["structured"]),
        (["freeform"], ["--lane", "structured", "--lane", "freeform"], ["structured", "freeform"]),
    ],
)
def test_a_gate_judges_the_lanes_of_the_branch_or_those_named(
    tmp_path: Path, weights: tuple[str, ...], named: list[str], options: list[str], judged: list[str]
) -> None:
    """Of the sandbox's family, whose `bf16` is meant for the named lanes alone."""
    family = yaml.safe_load((REPOSITORY / "data" / "families" / "sandbox.yaml").read_text(encoding="utf-8"))
    source = {"path": str(REPOSITORY / "data" / "sandbox" / "bf16")}
    family["branches"] = {"bf16": family["branches"]["bf16"] | {"lanes": named, "source": source}}
    path = tmp_path / "family.yaml"
    path.write_text(yaml.safe_dump(family), encoding="utf-8")
    options = ["--branch", "bf16", "--family", str(path), *weights, *options, "--json"]
    done = commands.q36eval("gate", *options, state=tmp_path, code=0)
    assert [lane["lane"] for lane in json.loads(done.stdout)["report"]["lanes"]] == judged
