"""What lies in `--out` when a gate ends early: no report of an earlier one, and everything else that lay there."""

import shutil
from pathlib import Path

import pytest

from q36eval.app.cli.report_formats import FORMATS
from tests import commands
from tests.app.weights_gates import SKIPPING

WRITTEN = {each.file for name, each in FORMATS.items() if name != "card"}
"""Of a gate that did not pass."""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all reports of a gate."""
    folder = tmp_path_factory.mktemp("earlier")
    commands.q36eval("gate", "--branch", "bf16", *SKIPPING, "--out", str(folder / "out"), state=folder, code=3)
    assert {file.name for file in (folder / "out").iterdir()} == WRITTEN
    return folder / "out"


@pytest.mark.parametrize(
    "options",
    [
        ["--branch", "nope"],
        ["--branch", "bf16", "--engine-arg", "nope=1"],
        ["--branch", "bf16", "--branch", "main", "--resume", "nope"],
    ],
)
def test_a_usage_error_leaves_no_report_of_an_earlier_gate(tmp_path: Path, earlier: Path, options: list[str]) -> None:
    out = tmp_path / "out"
    for name in ("", "bf16", "of-another-gate"):
        shutil.copytree(earlier, out / name, dirs_exist_ok=True)
    (out / "notes.txt").write_text("mine")
    assert commands.q36eval("gate", *options, "--out", str(out), state=tmp_path / "state").returncode == 2
    several = options.count("--branch") > 1
    assert {file.name for file in out.iterdir()} == {"notes.txt", "bf16", "of-another-gate"}
    left = {name: len(list((out / name).iterdir())) for name in ("bf16", "of-another-gate")}
    assert left == {"bf16": 0 if several else len(WRITTEN), "of-another-gate": len(WRITTEN)}


@pytest.mark.long
def test_asking_for_help_or_a_plan_costs_no_report_and_a_link_hides_none(tmp_path: Path, earlier: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    shutil.copytree(earlier, elsewhere)
    out.mkdir()
    (out / "report.json").symlink_to(elsewhere / "report.json")
    for harmless in (("--help",), ("--branch", "bf16", *SKIPPING, "--plan")):
        assert commands.q36eval("gate", "--out", str(out), *harmless, state=tmp_path / "state").returncode == 0
        assert (out / "report.json").exists()
    assert commands.q36eval("gate", "--branch", "nope", "--out", str(out), state=tmp_path / "state").returncode == 2
    assert not (out / "report.json").exists()
