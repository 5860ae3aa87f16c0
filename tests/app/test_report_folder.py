"""What lies in `--out` when a gate ends early: no report of an earlier one, and everything else that lay there."""

import shutil
from pathlib import Path

import pytest

from q36eval.app.cli.report_formats import FORMATS
from tests import commands

WEIGHTS_ALONE = ("--skip", "kl", "--skip", "evals", "--skip", "canaries")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all reports of a gate."""
    folder = tmp_path_factory.mktemp("earlier")
    done = commands.q36eval("gate", "--branch", "bf16", *WEIGHTS_ALONE, "--out", str(folder / "out"), state=folder)
    assert done.returncode == 3
    assert {file.name for file in (folder / "out").iterdir()} == {each.file for each in FORMATS.values()}
    return folder / "out"


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ["--branch", "nope"],
        ["--branch", "bf16", "--policy", "{file}"],
        ["--branch", "bf16", "--policy", "nope"],
        ["--branch", "bf16", "--family", "nope"],
        ["--branch", "bf16", "--suite", "nope"],
        ["--branch", "bf16", "--engine-arg", "nope=1"],
        ["--branch", "bf16", "--device", "tpu"],
        ["--branch", "bf16", "--waivers-from", "nope"],
        ["--branch", "bf16", "--resume", "nope"],
        ["--branch", "bf16", "--branch", "main", "--resume", "nope"],
        # what the parser itself refuses
        ["--branch", "bf16", "--draws", "none"],
        ["--branch", "bf16", "--nope"],
        ["--branch", "bf16", "stray"],
        ["--skip", "everything"],
        [],
    ],
)
def test_a_usage_error_leaves_no_report_of_an_earlier_gate(tmp_path: Path, earlier: Path, options: list[str]) -> None:
    out, malformed = tmp_path / "out", tmp_path / "policy.yaml"
    malformed.write_text("criteria: [")
    shutil.copytree(earlier, out)
    shutil.copytree(earlier, out / "bf16")
    shutil.copytree(earlier, out / "of-another-gate")
    (out / "notes.txt").write_text("mine")
    given = [option.format(file=malformed) for option in options]
    for glued in ([f"--out={out}"], ["--out", str(out)]):
        done = commands.q36eval("gate", *given, *glued, state=tmp_path / "state")
        assert done.returncode == 2, done.stderr
        several = given.count("--branch") > 1
        assert {file.name for file in out.iterdir()} == {"notes.txt", "bf16", "of-another-gate"}
        left = {name: len(list((out / name).iterdir())) for name in ("bf16", "of-another-gate")}
        assert left == {"bf16": 0 if several else len(FORMATS), "of-another-gate": len(FORMATS)}


def test_files_of_others_stay_though_they_are_called_like_a_report(tmp_path: Path) -> None:
    theirs = {
        "report.json": "{}",
        "report.md": "# My report",
        "junit.xml": '<testsuites name="pytest"/>',
        "github-summary.md": "",
        "report.html": "<!DOCTYPE html><html><title>q36eval</title></html>",
        "card.md": "# My model\n<!-- q36eval: begin -->\nfigures\n<!-- q36eval: end -->\n",
    }
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    done = commands.q36eval("gate", "--branch", "nope", "--out", str(tmp_path), state=tmp_path / "state")
    assert done.returncode == 2
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs


@pytest.mark.long
def test_asking_for_help_costs_no_report_and_a_link_hides_none(tmp_path: Path, earlier: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    shutil.copytree(earlier, elsewhere)
    out.mkdir()
    (out / "report.json").symlink_to(elsewhere / "report.json")
    assert commands.q36eval("gate", "--out", str(out), "--help", state=tmp_path / "state").returncode == 0
    assert (out / "report.json").exists()
    assert commands.q36eval("gate", "--branch", "nope", "--out", str(out), state=tmp_path / "state").returncode == 2
    assert not (out / "report.json").exists()
