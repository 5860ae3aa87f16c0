"""`q36eval report` and the reports of a gate: each format from history, in the place it was asked for."""

import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from q36eval.app.cli.report_formats import FORMATS, document_of, write_reports
from q36eval.history import History, RunRecord
from q36eval.reports.github_report import SUMMARY_LIMIT_BYTES
from tests import commands
from tests.app.judged_runs import judge_run, open_history
from tests.app.sandbox_gates import SKIPPING

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> RunRecord:
    """A gate run that failed, in a history of its own."""
    return judge_run(open_history(tmp_path), 150, date(2026, 3, 1), branch="int2")


@pytest.fixture
def command(run: RunRecord, tmp_path: Path) -> Command:
    """Runs the command line over that history: exit code, standard output, standard error."""

    def q36eval(*arguments: str, summary: Path | str = "", workflow: bool = False) -> tuple[int, str, str]:
        job = {"GITHUB_STEP_SUMMARY": str(summary), "GITHUB_ACTIONS": "true" if workflow else ""}
        done = commands.q36eval(*arguments, state=tmp_path, **job)
        return done.returncode, done.stdout, done.stderr

    return q36eval


def test_files_hold_what_is_printed(command: Command, run: RunRecord, tmp_path: Path) -> None:
    write_reports(document_of(run, History.open(tmp_path / "history.sqlite")), tmp_path)
    for name in ("json", "markdown", "junit", "html"):
        written = (tmp_path / FORMATS[name].file).read_text(encoding="utf-8")
        assert written == command("report", run.id, "--format", name)[1]
    assert (tmp_path / "github-summary.md").read_text().startswith("# FAIL: sandbox/int2")


def test_a_workflows_summary_is_appended_to(command: Command, tmp_path: Path) -> None:
    """One that cannot be written costs the summary alone."""
    summary = tmp_path / "summary.md"
    summary.write_text("# Step before\n")
    code, out, err = command("report", "latest", "--format", "github", summary=summary)
    assert (code, err) == (0, "")
    assert {line.split(" ")[0] for line in out.splitlines()} == {"::error"}
    assert summary.read_text().startswith("# Step before\n# FAIL: sandbox/int2\n")
    summary.write_text("x" * (SUMMARY_LIMIT_BYTES - 3000))
    command("report", "latest", "--format", "github", summary=summary)
    assert SUMMARY_LIMIT_BYTES - 3000 < summary.stat().st_size <= SUMMARY_LIMIT_BYTES
    code, out, err = command("report", "latest", "--format", "github", summary=tmp_path)
    assert code == 0
    assert out.startswith("::error")
    assert err == f"q36eval: the job summary {tmp_path} cannot be written: Is a directory.\n"


def test_a_card_that_is_there_keeps_its_own_text_and_line_ends(command: Command, tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    assert command("report", "latest", "--format", "card")[0] == 2, "it failed"
    judge_run(History.open(tmp_path / "history.sqlite"), 0, date(2026, 3, 2), branch="int2")
    own = "---\r\nlicense: mit\r\n---\r\n# Mine\r\n\r\nHand-written, žluťoučký.\r\n"
    card.write_bytes(own.encode())
    card.chmod(0o640)
    assert command("report", "latest", "--into", str(card))[0] == 2  # of no other format
    assert command("report", "latest", "--format", "card", "--into", str(card))[:2] == (0, "")
    text = card.read_bytes().decode()
    assert "# Mine\r\n\r\nHand-written, žluťoučký." in text
    assert "## Measured quality" in text
    assert "license: mit" in text
    assert card.stat().st_mode & 0o777 == 0o640
    assert "already" in command("report", "latest", "--format", "card", "--into", str(card))[2]
    assert card.read_bytes().decode() == text
    card.write_bytes(b"\xff\xfe")
    code, _, err = command("report", "latest", "--format", "card", "--into", str(card))
    assert (code, err.count("cannot be read"), card.read_bytes()) == (2, 1, b"\xff\xfe")


def test_a_step_that_ends_without_a_verdict_says_so_where_it_is_looked_for(command: Command, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    code, out, err = command("gate", "--branch", "nope", summary=summary, workflow=True)
    assert (code, err.splitlines()[-1].endswith("[branch-unknown]")) == (2, True)
    assert out.startswith("::error title=q36eval of nope::not judged: The family sandbox has no branch")
    assert "nope" in summary.read_text()
    for arguments in (("--policy", "no-such"), ("--json", "--policy", "no-such")):
        code, out, err = command("gate", "--branch", "bf16", *arguments, workflow=True)
        assert (code, (out + err).count("::error title=q36eval of bf16::not judged")) == (2, 1)
        assert ("--json" in arguments) == (not out.startswith("::error"))


# -- what lies in `--out` when a gate ends early: no earlier report, and everything else that lay there


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
