"""A verdict replayed from history alone: the same bytes whatever was written since; what another policy would say."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from q36eval.app.reviewing.replay import differences, retry
from q36eval.gate import Margin, Waiver
from q36eval.history import History, RunRecord
from q36eval.records import ProbeName
from tests import commands
from tests.app.judged_runs import judge_run, open_history, report_of
from tests.q36eval.gate.evidence import accuracy, census, in_blocks, small_policy
from tests.tampering import of_json, tamper, tamper_text

DAY = date(2026, 3, 1)
WAIVER = Waiver(owner="eva", reason="known", criterion="tools", expires=date(2026, 3, 31))


def waived_run(state: Path) -> RunRecord:
    """A failure waived on the day, against a blessed run; since then everything that it hung on has changed."""
    history = open_history(state)
    blessed = judge_run(history, 0, DAY)
    history.bless(blessed.id, "eva", "release 1")
    number = history.add_waiver("sandbox", "main", WAIVER)
    run = judge_run(history, 80, DAY)
    history.revoke_waiver(number)
    history.bless(run.id, "eva", "release 2")
    history.add_waiver("sandbox", "main", WAIVER.model_copy(update={"criterion": "mmlu"}))
    return run


def test_a_year_later_the_same_bytes_come_out_of_history(tmp_path: Path) -> None:
    run = waived_run(tmp_path)
    assert (report_of(run).exit_code, run.report.waived) == (0, ("tools",))
    assert run.circumstances.blessed_run not in (None, run.id)
    done = commands.q36eval("history", "show", run.id, "--replay", "--json", state=tmp_path)
    found = json.loads(done.stdout)
    assert (done.returncode, found["identical"], found["differences"]) == (0, True, [])
    report = commands.q36eval("report", run.id, "--format", "json", state=tmp_path).stdout
    assert hashlib.sha256(report.encode()).hexdigest() == found["sha256"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tampering", "named", "same"),
    [
        (("measurements", "clusters", lambda text: text.replace("1.0", "0.0")), "tools", False),
        (("runs", "circumstances", of_json(lambda kept: kept.pop("waivers"))), "waived_by", False),
        (("runs", "report", lambda text: text.replace('"verdict":"FAIL"', '"verdict":"PASS"')), "verdict", False),
        (("runs", "report", of_json(lambda report: report["criteria"][0].pop("to_turn"))), "to_turn", True),
    ],
)
def test_what_was_changed_behind_the_verdict_is_found_and_named(
    tmp_path: Path, tampering: tuple[str, str, Callable[[str], str]], named: str, same: bool
) -> None:
    """More that a newer version says (`same`) is told from another verdict."""
    run = waived_run(tmp_path)
    tamper_text(tmp_path / "history.sqlite", *tampering)
    done = commands.q36eval("history", "show", run.id, "--replay", state=tmp_path, code=1)
    assert "does not give the report that was kept" in done.stdout
    assert named in done.stdout
    assert ("Every verdict is the same" in done.stdout) == same


def test_another_policy_says_what_it_would_and_leaves_the_verdict_alone(history: History, tmp_path: Path) -> None:
    run = judge_run(history, 2, DAY)
    assert report_of(run).exit_code == 0
    body = small_policy().model_dump(mode="json")
    tools = next(criterion for criterion in body["criteria"] if criterion["id"] == "tools")
    tools["margin"]["value"] = 0.02
    file = tmp_path / "stricter.yaml"
    file.write_text(json.dumps({key: body[key] for key in ("name", "alpha", "criteria")}), encoding="utf-8")
    done = commands.q36eval("report", run.id, "--policy", str(file), "--json", state=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == found["report"]["exit_code"] != 0
    assert [(one["id"], one["was"]) for one in found["changes"]] == [("tools", "PASS")]
    assert found["unchanged"] == 2
    shown = commands.q36eval("report", run.id, "--policy", str(file), state=tmp_path).stdout
    assert "(tools): PASS (worse by ≤ 0.1) -> INCONCLUSIVE (worse by ≤ 0.02)" in shown
    assert history.get_run(run.id) == run


def test_a_run_that_only_measured_is_judged_by_a_policy_alone(history: History, tmp_path: Path) -> None:
    run = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    history.finish_run(run.id)
    alone = commands.q36eval("history", "show", run.id, "--replay", state=tmp_path)
    assert (alone.returncode, "only measured" in alone.stderr) == (2, True)
    assert commands.q36eval("report", run.id, "--policy", "sandbox", state=tmp_path).returncode == 3


def test_differences_go_by_name() -> None:
    kept = {"criteria": [{"id": "a", "p": 0.1}, {"id": "b", "p": 0.2}], "verdict": "PASS"}
    again = {"criteria": [{"id": "b", "p": 0.2 + 1e-16}, {"id": "a", "p": 0.1 + 1e-16}], "verdict": "PASS"}
    assert [line.split(":")[0] for line in differences(kept, again)] == ["criteria[a].p", "criteria[b].p"]


@pytest.mark.long
def test_replay_needs_nothing_that_measures(tmp_path: Path) -> None:
    run = waived_run(tmp_path)
    code = f"""
import sys
from q36eval.app.cli import main
for words in (["history", "show", {run.id!r}, "--replay"], ["report", {run.id!r}, "--policy", "sandbox"]):
    sys.argv = ["q36eval", *words]
    try:
        main()
    except SystemExit as left:
        assert left.code in (0, 3), left.code
heavy = ("torch", "transformers", "lm_eval", "q36eval.kl", "q36eval.evals", "q36eval.canaries")
print([name for name in heavy if name in sys.modules])
"""
    environment = {**os.environ, "Q36EVAL_STATE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("tampering", "named"),
    [
        (("runs", "report", of_json(lambda report: report.update(schema_version=3))), "at report.schema_version"),
        (("runs", "circumstances", of_json(lambda kept: kept.update(rules=1))), "at circumstances.rules"),
        (("runs", "report", lambda text: "[1"), "no JSON"),
        (
            ("measurements", "clusters", of_json(lambda kept: kept.update(units=[]))),
            "evals.accuracy[mmlu], which cannot",
        ),
        ("UPDATE readings SET direction = 'sideways ' || id", "which cannot be read (at direction"),
        ("UPDATE runs SET circumstances = NULL", "without the circumstances of its verdict"),
    ],
)
def test_what_a_newer_version_wrote_or_somebody_broke_is_one_sentence(
    tmp_path: Path, tampering: str | tuple[str, str, Callable[[str], str]], named: str
) -> None:
    run = judge_run(open_history(tmp_path), 0, DAY)
    if isinstance(tampering, str):
        tamper(tmp_path / "history.sqlite", tampering)
    else:
        tamper_text(tmp_path / "history.sqlite", *tampering)
    done = commands.q36eval("history", "show", run.id, "--replay", state=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("planned", "verdict"), [(200, "PASS"), (400, "INCONCLUSIVE")])
def test_another_policy_judges_nothing_that_was_asked_until_the_answers_pleased(
    tmp_path: Path, planned: int, verdict: str
) -> None:
    """Of 400 items 200 were asked, until the run's own margin was settled: that none of these was lost is no count."""
    history = open_history(tmp_path)
    run = judge_run(history, 0, DAY)
    asked = in_blocks(accuracy([1] * 200, [1] * 200))
    lost = census(ProbeName.EVALS, "items_lost", 0, "mmlu", total=200)
    plan = census(ProbeName.EVALS, "items_planned", planned, "mmlu", total=200)
    history.add_measurements(run.id, [asked, lost, plan])
    margin = Margin(kind="max_count", value=5, source="test")
    mmlu, tools, intact = small_policy().criteria
    few_lost = mmlu.model_copy(update={"id": "few-lost", "metric": "items_lost", "margin": margin})
    report = retry(history, run, small_policy(name="other", criteria=(mmlu, few_lost, tools, intact))).report
    judged = {result.id: result for result in report.criteria}
    assert (str(report.verdict), str(judged["mmlu"].verdict)) == (verdict, "PASS")
    assert ("evaluated only until" in judged["few-lost"].reason) == (verdict != "PASS")
