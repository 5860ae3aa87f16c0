"""What a report tells to do next are commands that exist."""

import re
import shlex
from datetime import date
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import typer

from q36eval.app.cli.main import app
from q36eval.gate import Circumstances, GateReport, Policy, Stage, StageState, decide
from q36eval.gate.report import Supplies
from q36eval.records import ProbeName, Verdict
from q36eval.reports import Document
from q36eval.reports.html_report import to_html
from q36eval.reports.markdown_report import to_markdown
from q36eval.reports.next_step import Since, next_steps
from q36eval.reports.ui_address import UI_URL, links
from tests.q36eval.gate import test_lanes_not_judged as lanes
from tests.q36eval.gate.evidence import only
from tests.q36eval.reports.report_samples import (
    HOSTILE,
    IDENTITY,
    accuracy,
    clean_report,
    hostile_report,
    interval_criteria,
    measured,
    run_of,
)

MMLU = only("min_recovery", 0.95, id="mmlu", probe="evals", metric="accuracy", slice="mmlu")


def steps(judged: GateReport, branch: str = "main", **run: Any) -> list[str]:
    return [step.command for step in next_steps(judged, run_of(branch, **run))]


def inconclusive() -> GateReport:
    return decide(Policy(name="p", criteria=interval_criteria()), measured(0.0144)[5:])


def test_what_is_told_fits_the_verdict() -> None:
    attribute, vllm = "q36eval attribute --branch main", IDENTITY.model_copy(update={"engine": "vllm"})
    assert steps(hostile_report()) == ["q36eval ui", attribute, "q36eval gate --branch main --exhaustive"]
    for report in (hostile_report(), inconclusive()):
        assert f"{attribute} --engine vllm" in steps(report, identity=vllm)
    passed = clean_report()
    assert steps(passed)[0].startswith("q36eval review bless 20260501-101112-abcdef ")
    waiting = passed.model_copy(update={"verdict": Verdict.INCONCLUSIVE, "exit_code": 3, "awaiting_sign_off": True})
    assert steps(waiting) == ["q36eval review sign-off 20260501-101112-abcdef --owner NAME --reason WHY"]
    open_ = inconclusive()
    assert open_.exit_code == 3
    assert steps(open_)[0] == "q36eval gate --branch main"  # a criterion was not measured
    assert "q36eval gate --branch main --exhaustive" in steps(open_)
    assert not [s for s in steps(open_, provenance={"exhaustive": True}) if "--exhaustive" in s]
    whole = Stage(name="evals", state=StageState.MEASURED, items=400, planned=400)
    asked = open_.model_copy(update={"stages": (whole,)})
    assert not [s for s in steps(asked) if "--exhaustive" in s]  # where everything was asked already
    part = asked.model_copy(update={"stages": (whole.model_copy(update={"items": 300}),)})
    assert [s for s in steps(part) if "--exhaustive" in s]
    gaining = decide(MMLU, [accuracy("mmlu", 0, 200)])
    assert [step.split()[1:3] for step in steps(gaining)] == [["review", "sign-off"], ["gate", "--resume"]]
    broken = open_.model_copy(update={"exit_code": 4})
    assert steps(broken) == ["q36eval gate --branch main"]
    required = lanes.POLICY.model_copy(update={"required": lanes.BOTH})
    unable = lanes.judged(lanes.answers("structured", 50), lanes.flips({"json": (2, 0)}), policy=required)
    assert steps(unable) == ["q36eval gate --branch main --canaries DIR --policy FILE"]
    served = IDENTITY.model_copy(update={"engine": "openai"})
    assert steps(broken, identity=served) == [
        "q36eval gate --branch main --engine openai --base-url URL",
        "q36eval gate --branch main",
    ]
    assert next_steps(passed) == ()
    nothing = {"verdict": Verdict.INCONCLUSIVE, "exit_code": 3, "headline": "NOTHING FOUND (pre-check, not a release)"}
    checked = passed.model_copy(update={"purpose": "pre-check", **nothing})
    assert steps(checked) == ["q36eval gate --branch main --suite release"]


def test_a_server_that_so_many_prompts_leave_open_is_asked_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GateReport, "of_server_alone", True)
    report = inconclusive()
    asked = {"served": {"items": 64}}
    undecided = [each for each in report.criteria if each.verdict == "INCONCLUSIVE"]
    open_ = report.model_copy(update={"criteria": tuple(undecided)})
    assert steps(open_, provenance=asked) == ["q36eval served --branch main --base-url URL --items 128"]
    both = {"served": {"items": 100, "second_endpoint": {}}}
    assert steps(open_, provenance=both) == ["q36eval served --branch main --base-url URL --against URL --items 128"]
    most = {"served": {"items": 128}}
    for known in (most, {}):
        assert steps(open_, provenance=known) == ["q36eval served --branch main --base-url URL"]
    assert any(each.verdict == "NOT_MEASURED" for each in report.criteria), "more prompts do not help that"
    assert steps(report, provenance=asked) == ["q36eval served --branch main --base-url URL"]


def test_more_draws_are_offered_where_a_canary_criterion_is_open() -> None:
    report = inconclusive()
    open_ = [result.model_copy(update={"probe": ProbeName.CANARIES}) for result in report.criteria]
    report = report.model_copy(update={"criteria": tuple(open_)})
    for draws, offered in ((60, ["--draws 120"]), (1_000, [])):
        on = Circumstances(on=date(2026, 5, 1), supplies=Supplies(draws=draws))
        told = [step.command for step in next_steps(report, run_of("main").model_copy(update={"circumstances": on}))]
        assert [part for command in told for part in re.findall("--draws [0-9]+", command)] == offered


def test_names_are_safe_to_copy() -> None:
    assert shlex.split(steps(hostile_report(), branch="my runs/int4")[1])[-1] == "my runs/int4"
    for name in (HOSTILE, "--force", "a;rm $(x)", "a` <b>x</b> `", "a'b", "a::b", "", "a\nb"):
        assert steps(hostile_report(), branch=name)[1] == "q36eval attribute --branch BRANCH"
    assert steps(hostile_report(), family="qwen3.6-35b-a3b")[1].endswith("--branch main --family qwen3.6-35b-a3b")
    assert steps(inconclusive(), branch="/out dir/my-int4")[0] == "q36eval gate --branch '/out dir/my-int4'"


@pytest.mark.parametrize(
    "judged", [hostile_report(), clean_report(), inconclusive(), decide(MMLU, [accuracy("mmlu", 150, 0)])]
)
@pytest.mark.parametrize("kept", [{}, {"reference": "/a"}, {"reference_pack": "/p"}])
def test_the_commands_exist(judged: GateReport, kept: dict[str, str]) -> None:
    """As they stand, with the options by which the run named its model."""
    group: Any = typer.main.get_command(app)
    options = {"branch": ["/b"], "family": None} | kept
    run = run_of("/b", provenance={"options": options}, policy=MMLU.model_dump(mode="json"))
    for step in (*next_steps(judged, run), *next_steps(judged, run, Since(blessed=True))):
        words, command = shlex.split(step.command)[1:], group
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("q36eval", words, resilient_parsing=False)


# -- reports lead to what they tell of, in the review UI that the environment names

ROOT = "https://review.example/q36eval"


def test_every_report_leads_to_the_run_and_to_what_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    report, run = hostile_report(), run_of("main")
    monkeypatch.setenv(UI_URL, f"{ROOT}/")
    found = links(report, run)
    assert found[0].address == f"{ROOT}/run?run={run.id}"
    pages = {urlsplit(link.address).path.rpartition("/")[2] for link in found}
    assert pages == {"run", "kl", "evals", "canaries"}
    (lost,) = (link for link in found if "canaries" in link.address)
    query = parse_qs(urlsplit(lost.address).query)
    assert query == {"run": [run.id], "outcome": ["regression"]}
    for link in found:
        assert f"](<{link.address}>)" in to_markdown(Document(report, run))
        assert f'<a href="{link.address.replace("&", "&amp;")}">' in to_html(Document(report, run))


@pytest.mark.parametrize(
    "root", ["", "review.example", "javascript:alert(1)", "https://a.example/>(x)", HOSTILE, "http://u:p@a"]
)
def test_no_link_without_a_plain_address(monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    monkeypatch.setenv(UI_URL, root.replace("\0", ""))
    assert links(hostile_report(), run_of()) == ()
    monkeypatch.setenv(UI_URL, ROOT)
    assert links(hostile_report(), None) == ()


def test_a_branch_is_named_with_the_options_of_its_run() -> None:
    named = {
        "--branch sandbox/main": {"branch": ["sandbox/main"], "family": "sandbox"},
        "--branch /b --reference /a": {"branch": ["/b"], "family": None, "reference": "/a"},
        "--branch Org/M@v1 --family /f.yaml": {"branch": ["Org/M@v1"], "family": "/f.yaml"},
        "--branch BRANCH --reference REFERENCE": {"branch": ["a;b"], "family": None, "reference": HOSTILE},
    }
    for words, options in named.items():
        assert steps(inconclusive(), provenance={"options": options})[0] == f"q36eval gate {words}"
    engine = {"device": "cuda:0", "engine_arguments": ["max_model_len=9", "engine_python=/p", "a;b", "hf_token=x"]}
    options = {"branch": ["/b"], "family": None, "engine": "vllm"} | engine
    told = steps(
        inconclusive(), provenance={"options": options}, identity=IDENTITY.model_copy(update={"engine": "vllm"})
    )
    words = "--branch /b --engine vllm --device cuda:0 --engine-arg max_model_len=9 --engine-arg NAME=VALUE"
    assert [step.partition(words)[0] for step in told] == ["q36eval gate ", "q36eval gate ", "q36eval attribute "]
