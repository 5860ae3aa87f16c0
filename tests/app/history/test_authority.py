"""Authority does not arrive by mail: an archive brings evidence, and what people decided elsewhere waits here."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from q36eval.app.history.import_export import export, take_in
from q36eval.app.reviewing.redeciding import decide_again
from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord
from q36eval.history.deciding import sign
from q36eval.records import Verdict
from tests import commands
from tests.app.history.filled import DAY, WAIVER, fill
from tests.app.history.test_moving import changed
from tests.app.judged_runs import items_of, judge_run, open_history

pytestmark = pytest.mark.long


def archive_of(state: Path, history: History, run: RunRecord) -> Path:
    file = state / "runs.zip"
    export(history, Paths(state, state), [run.id], file, lambda _: None)
    return file


def edited(file: Path, part: str, edit: Callable[[Any], object]) -> Path:
    """The archive with the JSON of a file in it changed, its manifest made to fit."""

    def change(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.endswith(part))
        lines = [json.loads(line) for line in files[name].splitlines()]
        kept = edit(lines)
        files[name] = b"".join(json.dumps(line).encode() + b"\n" for line in (lines if kept is None else kept))  # type: ignore[attr-defined]

    file.write_bytes(changed(file.read_bytes(), change))
    return file


def again(history: History, run_id: str) -> RunRecord:
    """The run decided as of today, for which a sign-off is required."""
    run = history.get_run(run_id)
    return decide_again(history, run, family="sandbox", branch="main", policy=None, on=datetime.now(UTC).date())


def test_a_signature_from_elsewhere_signs_nothing_before_somebody_accepts_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history = open_history(here)
    run = judge_run(history, 0, DAY, require_sign_off=True, items=items_of(0))
    sign(history, run, "mallory", "trust me")
    run = again(history, run.id)
    assert run.verdict is Verdict.PASS
    done = commands.q36eval("history", "import", str(archive_of(here, history, run)), state=there)
    assert (
        "its evidence gives INCONCLUSIVE, awaiting sign-off (signatures made elsewhere are not in force" in done.stdout
    )
    assert "imported, not in force: sign-off-1, sign-off of run" in done.stdout
    other = open_history(there)
    came = other.get_run(run.id)
    assert (came.verdict, came.report.signed_by if came.report else None) == (Verdict.INCONCLUSIVE, ())
    assert (other.sign_offs(run.id), again(other, run.id).verdict) == ([], Verdict.INCONCLUSIVE)
    shown = commands.q36eval("history", "show", run.id, state=there).stdout
    assert "(imported, not in force)" in shown
    assert "imported" in commands.q36eval("history", "list", state=there).stdout
    unnamed = commands.q36eval("history", "import", "--accept", "sign-off-1", state=there)
    assert (unnamed.returncode, commands.code_of(unnamed)) == (2, "option-missing")
    accepted = commands.q36eval(
        "history", "import", "--accept", "sign-off-1", "--owner", "eva", "--reason", "mallory is ours", state=there
    )
    assert accepted.returncode == 0, accepted.stderr
    assert again(other, run.id).verdict is Verdict.PASS
    assert "imported, accepted by eva" in str(other.signatures(run.id)[0][1].words)
    assert commands.q36eval("history", "status", "--verify", state=there).returncode == 0


def test_waivers_and_blessings_wait_too_and_the_gate_does_not_count_them(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    history, run = fill(here)  # a FAIL that a waiver turned to PASS, blessed and signed
    assert run.verdict is Verdict.PASS
    other = open_history(there)
    came = take_in(other, there, archive_of(here, history, run))
    assert other.get_run(run.id).verdict is Verdict.FAIL
    assert [one.id for one in came.waiting] == ["blessing-1", "waiver-1", "sign-off-1"]
    assert "waivers made elsewhere are not in force here" in came.says[0]
    assert (other.waivers("sandbox", "main"), other.blessings("main"), other.blessed("main")) == ({}, [], None)
    waiting = json.loads(commands.q36eval("review", "list", "--all", "--json", state=there).stdout)
    assert [(one["number"], one["state"]) for one in waiting] == [(1, "expired")]
    other.accept("waiver-1", "eva", "the same build")
    other.accept("blessing-1", "eva", "the same build")
    assert list(other.waivers("sandbox", "main").values()) == [WAIVER]
    assert other.blessings("main")[0].run_id == run.id
    with pytest.raises(UsageError, match="No imported decision 'waiver-1' waits"):
        other.accept("waiver-1", "eva", "once more")
    assert other.verify().fits


REWRITTEN: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "fewer failures than the items show": (
        "measurements.jsonl",
        lambda lines: lines[0]["clusters"]["branch"].__setitem__(199, 1.0),
        "counts 181 of the branch where its items give 180",
    ),
    "failures that name no items": (
        "measurements.jsonl",
        lambda lines: lines[1]["clusters"].update(names=None, branch=[0.0] * 200),
        "does not say of which items it is",
    ),
    "failures that name one item over and over": (
        "measurements.jsonl",
        lambda lines: lines[1]["clusters"].update(names=[lines[1]["clusters"]["names"][199]] * 200, branch=[0.0] * 200),
        "counts an item twice",
    ),
    "a figure without its clusters": (
        "measurements.jsonl",
        lambda lines: lines[1].update(clusters=None, estimator="census", value=0.0),
        "does not say of which items it is",
    ),
    "items that are called otherwise": (
        "items.jsonl",
        lambda lines: [line | {"group": "other"} for line in lines],
        "where its items give 0",
    ),
    "no items": ("items.jsonl", lambda lines: [], "is of 200 outcomes, of which the archive holds 0"),
    "a blessing of 2099": (
        "about.json",
        lambda lines: lines[0]["blessings"][0].update(at="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "a signature of 2099": (
        "about.json",
        lambda lines: lines[0]["sign_offs"][0].update(at="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "a run of 2099": (
        "run.json",
        lambda lines: lines[0].update(started="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "a waiver of 2099": (
        "waivers.json",
        lambda lines: lines[0].update(added="2099-01-01T00:00:00Z"),
        "is dated 2099-01-01 00:00, which is in the future",
    ),
    "a verdict without an end": ("run.json", lambda lines: lines[0].update(state="running"), "and is running"),
    "a verdict without a report": ("run.json", lambda lines: lines[0].update(report=None), "and no report"),
    "a verdict without a policy": ("run.json", lambda lines: lines[0].update(policy=None), "it only measured"),
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    state = tmp_path_factory.mktemp("state")
    return archive_of(state, *fill(state)).read_bytes()


@pytest.mark.parametrize("what", REWRITTEN)
def test_what_was_rewritten_is_refused_in_one_sentence(archive: bytes, tmp_path: Path, what: str) -> None:
    part, edit, needle = REWRITTEN[what]
    file = tmp_path / "in.zip"
    file.write_bytes(archive)
    done = commands.q36eval("history", "import", str(edited(file, part, edit)), state=tmp_path / "state")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert needle in done.stderr
    history = open_history(tmp_path / "state")
    assert (history.summaries(), history.decisions_by_people()) == ([], [])


def test_a_report_that_its_evidence_does_not_give_is_told_and_not_kept(tmp_path: Path) -> None:
    history = open_history(tmp_path / "here")
    good = judge_run(history, 0, DAY)
    bad = judge_run(history, 80, DAY, items=items_of(80))
    assert good.report is not None
    passing = json.loads(good.report.model_dump_json())
    file = archive_of(tmp_path, history, bad)
    edited(file, "run.json", lambda lines: lines[0].update(report=passing, verdict="PASS"))
    other = open_history(tmp_path / "there")
    (sentence,) = take_in(other, tmp_path / "there", file).says
    why = "its report is not of its evidence"
    assert sentence == f"Run {bad.id}: the archive says PASS, its evidence gives FAIL ({why}); FAIL is kept."
    assert [run.verdict for run in other.summaries()] == [Verdict.FAIL]
    assert commands.q36eval("history", "show", bad.id, "--replay", state=tmp_path / "there").returncode == 0
