"""What a report tells to do next are commands that exist."""

import shlex
from typing import Any

import pytest
import typer
from report_samples import HOSTILE, clean_report, hostile_report, interval_criteria, measured, run_of

from app.cli.main import app
from q36eval.gate import GateReport, Policy, decide
from q36eval.records import Verdict
from q36eval.reports.next_step import next_steps


def steps(judged: GateReport, branch: str = "main", **run: Any) -> list[str]:
    return [step.command for step in next_steps(judged, run_of(branch, **run))]


def inconclusive() -> GateReport:
    return decide(Policy(name="p", criteria=interval_criteria()), measured(0.0144)[5:])


def test_what_is_told_fits_the_verdict() -> None:
    assert steps(hostile_report()) == [
        "q36eval ui",
        "q36eval attribute --branch main",
        "q36eval gate --branch main --exhaustive",
    ]
    passed = clean_report()
    assert steps(passed)[0].startswith("q36eval history bless 20260501-101112-abcdef ")
    waiting = passed.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "exit_code": 3, "awaiting_sign_off": True})
    assert steps(waiting) == ["q36eval sign-off 20260501-101112-abcdef --owner NAME --reason WHY"]
    open_ = inconclusive()
    assert open_.exit_code == 3
    assert steps(open_)[0] == "q36eval gate --branch main"  # a criterion was not measured
    assert "q36eval gate --branch main --exhaustive" in steps(open_)
    assert not [s for s in steps(open_, provenance={"exhaustive": True}) if "--exhaustive" in s]
    broken = open_.model_copy(update={"exit_code": 4})
    assert steps(broken) == ["q36eval gate --branch main"]
    assert next_steps(passed) == ()
    nothing = {"verdict": Verdict.INCONCLUSIVE, "exit_code": 3, "headline": "NOTHING FOUND (pre-check, not a release)"}
    checked = passed.model_copy(update={"purpose": "pre-check", **nothing})
    assert steps(checked) == ["q36eval gate --branch main --suite release"]


def test_names_are_safe_to_copy() -> None:
    assert shlex.split(steps(hostile_report(), branch="my runs/int4")[1])[-1] == "my runs/int4"
    for name in (HOSTILE, "--force", "a;rm $(x)", "a` <b>x</b> `", "a'b", "a::b", "", "a\nb"):
        assert steps(hostile_report(), branch=name)[1] == "q36eval attribute --branch BRANCH"
    assert steps(hostile_report(), family="qwen3.6-35b-a3b")[1].endswith("--branch main --family qwen3.6-35b-a3b")


@pytest.mark.parametrize("judged", [hostile_report(), clean_report(), inconclusive()])
def test_the_commands_exist(judged: GateReport) -> None:
    group: Any = typer.main.get_command(app)
    for line in steps(judged):
        words, command = shlex.split(line)[1:], group
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("q36eval", words, resilient_parsing=False)


def test_a_folder_is_named_as_it_was_named() -> None:
    """Its basename, which it goes by in history, finds no folder."""
    told = steps(inconclusive(), branch="my-int4", provenance={"named": "out dir/my-int4"})
    assert told[0] == "q36eval gate --branch 'out dir/my-int4'"
