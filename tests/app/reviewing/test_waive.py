"""Waivers and signatures by command: what is refused, what they change, and what they do not."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from q36eval.app.cli.gate_branches import Branches
from q36eval.app.reviewing.redecision import decide_again
from q36eval.app.reviewing.replay import differences, retry
from q36eval.app.reviewing.waiver_files import read_waivers, strangers
from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate import Margin, Waiver
from q36eval.history import History, RunRecord
from q36eval.history.decisions import WaiverSource, circumstances_on, sign
from q36eval.records import ProbeName, Verdict
from tests import commands
from tests.app.judged_runs import judge_flips, judge_run, open_history
from tests.q36eval.gate.evidence import accuracy, census, in_blocks, small_policy
from tests.tampering import of_json, tamper, tamper_text

REPOSITORY = Path(__file__).parents[3]
DAY = date(2026, 3, 1)
SOON = (datetime.now(UTC).date() + timedelta(days=30)).isoformat()
WRITTEN = ("--branch", "main", "--owner", "eva", "--reason", "known, fixed in the next build")


def waived(criterion: str = "tools", expires: date = date(2026, 3, 31)) -> Waiver:
    return Waiver(owner="eva", reason="known", criterion=criterion, expires=expires)


@pytest.mark.long
def test_a_waiver_says_what_it_changes_and_counts_until_it_is_taken_back(history: History, tmp_path: Path) -> None:
    passed = judge_run(history, 0, DAY)
    failed = judge_run(history, 80, DAY)
    added = commands.q36eval("review", "waive", *WRITTEN, "--criterion", "tools", "--expires", SOON, state=tmp_path)
    assert added.returncode == 0, added.stderr
    assert f"run {failed.id}: tools set aside, FAIL -> PASS with waivers" in added.stdout
    assert f"run {passed.id}: nothing changes, PASS" in added.stdout
    assert history.get_run(failed.id).verdict is Verdict.FAIL
    today = datetime.now(UTC).date()
    assert judge_run(history, 80, today).verdict is Verdict.PASS
    (listed,) = json.loads(commands.q36eval("review", "list", "--json", state=tmp_path).stdout)
    assert (listed["number"], listed["state"], listed["excuses"]) == (1, "in force", "criterion tools")
    assert commands.q36eval("review", "revoke", "1", "--owner", "jan", state=tmp_path).returncode == 0
    assert commands.q36eval("review", "revoke", "1", state=tmp_path).returncode == 2
    assert judge_run(history, 80, today).verdict is Verdict.FAIL
    assert json.loads(commands.q36eval("review", "list", "--json", state=tmp_path).stdout) == []
    (kept,) = json.loads(commands.q36eval("review", "list", "--all", "--json", state=tmp_path).stdout)
    assert (kept["state"], kept["revoked_by"]) == ("revoked", "jan")


def add(state: Path, code: int, needle: str, *arguments: str) -> None:
    """`review waive` ends with that code, and says that to the person; an error is one line."""
    done = commands.q36eval("review", "waive", *WRITTEN, "--expires", SOON, *arguments, state=state, code=code)
    assert code == 0 or done.stderr.count("\n") == 1, done.stderr
    assert needle in done.stdout + done.stderr


@pytest.mark.long
def test_a_waiver_that_the_newest_run_does_not_need_is_written_only_ahead(history: History, tmp_path: Path) -> None:
    """It would lie there until it excuses what nobody has looked at."""
    add(tmp_path, 0, "", "--criterion", "kl")  # no run was judged: there is nothing to hold it against
    judge_run(history, 80, DAY)
    passed = judge_run(history, 0, DAY)
    for needle in (f"(tools) passes in run {passed.id}", "--ahead"):
        add(tmp_path, 2, needle, "--criterion", "tools")
    assert len(history.waiver_records()) == 1
    add(tmp_path, 0, "", "--criterion", "tools", "--ahead")
    judge_run(history, 80, datetime.now(UTC).date())
    add(tmp_path, 2, "is waived already, until", "--criterion", "tools")


def test_a_waiver_of_what_blocks_nothing_is_refused(tmp_path: Path) -> None:
    rules = small_policy()
    advisory = [one.model_copy(update={"tier": "advisory"} if one.id == "tools" else {}) for one in rules.criteria]
    judge_run(open_history(tmp_path), 80, DAY, policy=rules.model_copy(update={"criteria": tuple(advisory)}))
    add(tmp_path, 2, "is advisory and blocks nothing", "--criterion", "tools")


def test_of_two_canaries_that_fail_a_criterion_together_each_can_be_waived_and_no_third(tmp_path: Path) -> None:
    """Neither excuses it alone, so the first of the two waivers changes nothing yet."""
    history = open_history(tmp_path)
    run = judge_flips(history, {"copy-exact": 3, "json-flat": 3, "tool-call": 0})
    add(tmp_path, 2, "the canary tool-call lost nothing", "--canary", "tool-call")
    add(tmp_path, 0, "together with json-flat", "--canary", "copy-exact")
    add(tmp_path, 0, "flips set aside", "--canary", "json-flat")
    report = again(history, run, datetime.now(UTC).date()).report
    waived_by = {waiver.canary for result in report.criteria for waiver in result.waived_by}
    assert waived_by == {"copy-exact", "json-flat"}


def test_an_export_reads_back_and_then_its_waivers_alone_count(history: History, tmp_path: Path) -> None:
    today = datetime.now(UTC).date()
    until = today + timedelta(days=3)
    odd = Waiver(owner="eva: #1", reason='"yes"\n- no', criterion="tools", slice="tools", canary="copy", expires=until)
    history.add_waiver("sandbox", "main", odd)
    history.add_waiver("sandbox", "fp8-head", waived(expires=until))
    history.add_waiver("sandbox", "main", waived("mmlu", expires=today - timedelta(days=1)))
    file = tmp_path / "waivers.yaml"
    assert commands.q36eval("review", "list", "--out", str(file), state=tmp_path).returncode == 0
    found = read_waivers(file, today)
    assert {key: source.waivers for key, source in found.items()} == {
        ("sandbox", "main"): (odd,),
        ("sandbox", "fp8-head"): (waived(expires=until),),
    }
    history.add_waiver("sandbox", "main", waived(expires=until))
    paths = Paths(REPOSITORY, tmp_path)
    branches = Branches(["main"], Family.load(paths.families / "sandbox.yaml"), paths, file, None)
    for name, expected in (("fp8-head", (waived(expires=until),)), ("w4a16", ())):
        source = branches._source(name)
        assert source == WaiverSource(str(file), expected)
        now = circumstances_on(history, judge_run(history, 0, today), today, source=source)
        assert (now.waivers, now.waivers_from) == (expected, str(file))


ENTRY = "{family: sandbox, branch: main, criterion: kl, owner: eva, reason: known, expires: 2026-04-01}"


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        (f"waivers: [{ENTRY.replace('criterion: kl', 'criterium: kl')}]", "criterium"),
        (f"waivers: [{ENTRY.replace('criterion: kl,', '')}]", "names a criterion, a slice or a canary"),
        (f"waivers: [{ENTRY.replace('2026-04-01', '2028-04-01')}]", "waivers.0.expires: 2028-04-01 is further away"),
        ("waivers: [" + ENTRY.replace("branch: main", r'branch: "./\0"') + "]", "waivers.0.branch"),
        (None, "no waiver file"),
    ],
)
def test_a_wrong_waiver_file_is_one_sentence_before_anything_is_measured(
    tmp_path: Path, text: str | None, needle: str
) -> None:
    file = tmp_path / "waivers.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_waivers(file, DAY)
    assert needle in str(caught.value)
    assert "\n" not in str(caught.value)


def again(history: History, run: RunRecord, on: date = DAY) -> RunRecord:
    return decide_again(history, history.get_run(run.id), family="sandbox", branch="main", policy=None, on=on)


@pytest.mark.long
def test_a_run_passes_once_it_is_signed_and_nothing_is_measured_for_that(history: History, tmp_path: Path) -> None:
    run = judge_run(history, 0, datetime.now(UTC).date(), require_sign_off=True)
    resume = ("gate", "--branch", "main", "--resume", run.id, "--require-sign-off", "--policy")
    policy = tmp_path / "policy.yaml"
    body = run.policy or {}
    policy.write_text(json.dumps({key: body[key] for key in ("name", "alpha", "criteria")}), encoding="utf-8")
    waiting = commands.q36eval(*resume, str(policy), "--json", state=tmp_path)
    assert (waiting.returncode, json.loads(waiting.stdout)["report"]["awaiting_sign_off"]) == (3, True), waiting.stderr
    signing = ("review", "sign-off", run.id, "--owner", "eva", "--reason", "read the flips")
    assert commands.q36eval(*signing, state=tmp_path).returncode == 0
    assert commands.q36eval("history", "show", run.id, "--replay", state=tmp_path).returncode == 0
    twice = commands.q36eval(*signing, state=tmp_path)
    assert (twice.returncode, "has already signed" in twice.stderr) == (2, True)
    commands.q36eval(*resume, str(policy), state=tmp_path, code=0)
    signed = history.get_run(run.id)
    assert [one.owner for one in signed.report.signed_by] == ["eva"]
    (earlier,) = history.earlier_decisions(run.id)
    assert earlier.report == run.report
    assert commands.q36eval("history", "show", run.id, "--replay", state=tmp_path).returncode == 0


def test_latest_is_the_newest_gate_and_what_has_no_verdict_takes_no_signature(history: History, tmp_path: Path) -> None:
    gate = judge_run(history, 0, DAY)
    judge_run(history, 80, DAY, branch="watch:prod")
    inspected = history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    history.finish_run(inspected.id)
    signing = ("review", "sign-off", "--owner", "eva", "--reason", "read it")
    assert gate.id in commands.q36eval(*signing, "latest", state=tmp_path).stdout
    refused = commands.q36eval(*signing, inspected.id, state=tmp_path)
    assert (refused.returncode, "has no verdict" in refused.stderr, refused.stderr.count("\n")) == (2, True, 1)
    history.delete_run(gate.id)
    with pytest.raises(UsageError, match="no gate yet"):
        history.get_run("latest")


@pytest.mark.long
def test_a_signature_is_of_one_report_and_turns_no_failure(history: History) -> None:
    """Signed while a waiver held; when that has run out, the same evidence fails and the signature is void."""
    number = history.add_waiver("sandbox", "main", waived())
    run = judge_run(history, 80, DAY, require_sign_off=True)
    sign(history, run, "eva", "waived until the end of March")
    signed = again(history, run)
    assert (signed.report.exit_code, len(signed.report.signed_by)) == (0, 1)
    late = again(history, run, date(2026, 4, 1))
    assert (late.report.exit_code, late.report.signed_by) == (1, ())
    back = again(history, run)
    assert back.report == signed.report
    history.revoke_waiver(number)
    failed = again(history, run)
    sign(history, failed, "eva", "I have seen it")
    assert again(history, run).verdict is Verdict.FAIL
    assert len(history.earlier_decisions(run.id)) == 5


def test_what_is_decided_again_is_the_run_that_was_asked_for(history: History, tmp_path: Path) -> None:
    run = judge_run(history, 0, DAY)
    with pytest.raises(UsageError, match="is of sandbox/main, not of sandbox/fp8-head"):
        decide_again(history, run, family="sandbox", branch="fp8-head", policy=None, on=DAY)
    arguments = ("gate", "--branch", "main", "--resume", run.id, "--require-sign-off", "--policy", "sandbox")
    done = commands.q36eval(*arguments, state=tmp_path)
    assert (done.returncode, "judged by another policy (small)" in done.stderr) == (2, True)
    assert history.get_run(run.id) == run


def test_a_run_blessed_since_is_not_held_against_itself(history: History) -> None:
    first = judge_run(history, 0, DAY)
    history.bless(first.id, "eva", "release 1")
    run = judge_run(history, 0, DAY)
    history.bless(run.id, "eva", "release 2")
    decided = again(history, run)
    assert decided.circumstances.blessed_run == first.id


def test_a_report_that_cannot_be_found_again_is_not_signed(history: History) -> None:
    run = judge_run(history, 0, DAY)
    other = run.report.model_copy(update={"headline": "PASS, of another version"})
    history.decide_again(run.id, other, circumstances_on(history, run, DAY))
    with pytest.raises(UsageError, match="decided by another version"):
        sign(history, history.get_run(run.id), "eva", "trust me")
    assert history.sign_offs(run.id) == []


def test_a_run_decided_by_the_waivers_of_a_file_is_not_decided_again_by_history_s_own(history: History) -> None:
    run = judge_run(history, 80, DAY)
    source = WaiverSource("waivers.yaml", ())
    by_file = circumstances_on(history, run, DAY, source=source)
    history.update_run(run.id, circumstances=by_file)
    history.add_waiver("sandbox", "main", waived())
    with pytest.raises(UsageError, match=r"by the waivers in waivers\.yaml alone"):
        again(history, run)
    kept = history.get_run(run.id)
    found = decide_again(history, kept, family="sandbox", branch="main", policy=None, on=DAY, source=source)
    assert found.verdict is Verdict.FAIL


def test_a_slip_of_the_pen_in_a_branchs_name_is_said(tmp_path: Path) -> None:
    file = tmp_path / "waivers.yaml"
    folder = ENTRY.replace("branch: main", "branch: ./mian")
    file.write_text(f"waivers: [{ENTRY}, {ENTRY.replace('branch: main', 'branch: mian')}, {folder}]", encoding="utf-8")
    family = Family.load(REPOSITORY / "data/families/sandbox.yaml")
    there = str(Path.cwd() / "mian")
    (said,) = strangers(read_waivers(file, DAY), family, ["main", there])
    assert "'mian' of sandbox" in said
    assert "closest are: main" in said
    file.write_text(f"waivers: [{ENTRY.replace('sandbox', 'sandbx')}]", encoding="utf-8")
    (said,) = strangers(read_waivers(file, DAY), family, ["main"])
    assert "sandbx" in said


# -- decided again from history: the same bytes, another policy, what was changed behind the verdict


def waived_run(state: Path) -> RunRecord:
    """A failure waived on the day, against a blessed run; since then everything that it hung on has changed."""
    history = open_history(state)
    blessed = judge_run(history, 0, DAY)
    history.bless(blessed.id, "eva", "release 1")
    number = history.add_waiver("sandbox", "main", waived())
    run = judge_run(history, 80, DAY)
    history.revoke_waiver(number)
    history.bless(run.id, "eva", "release 2")
    history.add_waiver("sandbox", "main", waived("mmlu"))
    return run


def test_a_year_later_the_same_bytes_come_out_of_history(tmp_path: Path) -> None:
    run = waived_run(tmp_path)
    assert (run.report.exit_code, run.report.waived) == (0, ("tools",))
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
    assert run.report.exit_code == 0
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
