"""Every way a gate can end has its exit code and one sentence, and keeps what it measured."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from sqlalchemy import Engine, event

from q36eval.history import EventKind, History, RunState
from q36eval.records import Verdict
from tests import commands, forked
from tests.app.judged_runs import judge_run, open_history
from tests.app.sandbox_gates import REPOSITORY, SKIPPING, copied, runs, said
from tests.branches import folder_of


def test_0_pass_1_fail_3_inconclusive(tmp_path: Path, weights: tuple[str, ...]) -> None:
    state = tmp_path / "state"
    assert commands.q36eval("gate", "--branch", "bf16", *weights, state=state).returncode == 0
    damaged = copied(folder_of("main"), tmp_path / "damaged")
    os.truncate(damaged / "model.safetensors", (damaged / "model.safetensors").stat().st_size - 1000)
    assert commands.q36eval("gate", "--branch", str(damaged), *weights, state=state).returncode == 1
    # the worst of several branches, whichever order they are in
    both = ("gate", "--branch", str(damaged), "--branch", "bf16")
    documents = json.loads(commands.q36eval(*both, *weights, "--json", state=state).stdout)
    assert (documents["exit_code"], [one["report"]["exit_code"] for one in documents["reports"]]) == (1, [1, 0])
    commands.q36eval("gate", "--branch", "bf16", *SKIPPING, state=state, code=3)
    assert {run.verdict for run in runs(state)} == {Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE}
    assert {run.branch for run in runs(state)} == {"bf16", str(damaged)}


def test_no_report_of_an_earlier_gate_outlives_the_start_of_another(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """A pipeline keeps whatever lies in the folder, also when the gate was interrupted."""
    state, stderr, out = tmp_path / "state", tmp_path / "stderr", tmp_path / "out"
    out.mkdir()
    for name in ("report.json", "junit.xml", "notes.txt"):
        (out / name).write_text("an earlier PASS")
    gate = ("gate", "--branch", "bf16", *weights, "--out", str(out))
    child = forked.start(*gate, state=state, stderr=stderr, before=forked.awaiting_ctrl_c)
    child.until(lambda: child.has_said("inspecting"))
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 130
    assert [file.name for file in out.iterdir()] == ["notes.txt"]
    (out / "report.json").mkdir()
    refused = commands.q36eval(*gate, state=state)
    assert (refused.returncode, len(runs(state))) == (2, 1)  # before anything is measured
    assert "report.json cannot be replaced" in said(refused.stderr)


@pytest.mark.parametrize(
    ("arguments", "closed", "code"), [("policy list", ">&- 2>&- <&-", 0), ("drift --all", "2>&-", 2)]
)
def test_streams_that_are_closed_cost_nothing(tmp_path: Path, arguments: str, closed: str, code: int) -> None:
    """A service manager may start a command so: its exit code stays, and no sentence moves to the other stream."""
    line = f'"{sys.executable}" -c "from q36eval.app.cli import main; main()" {arguments} {closed}'
    environment = {**os.environ, "Q36EVAL_STATE": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


EVIL = "no\n::error::owned\r\x1b[31m##[error]owned :::error file=a:::x"


def test_names_are_inert_in_every_sentence(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """A runner reads commands from both streams, and a branch is called what somebody called it."""
    state, summary = tmp_path / "state", tmp_path / "summary.md"
    done = commands.q36eval(
        *("gate", "--branch", EVIL, "--branch", "bf16", *weights),
        state=state,
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 2
    annotations = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert [line.split()[0] for line in annotations] == ["::error", "::notice"]
    assert "::not judged: The family sandbox has no branch" in annotations[0]
    assert "# Not judged: " in summary.read_text(encoding="utf-8")
    (run,) = runs(state)
    names = ("--owner", EVIL, "--reason", EVIL)
    others = [
        ("gate", "--branch", "bf16", "--out", f"/proc/{EVIL}"),
        ("drift", "--branch", EVIL),
        ("review", "sign-off", run.id, *names),
        ("history", "show", run.id),
        ("review", "waive", "--branch", "bf16", "--slice", "all", *names, "--expires", EVIL),
        ("review", "waive", "--branch", "bf16", "--slice", "all", *names, "--expires", f"{datetime.now(UTC).date()}"),
        ("review", "list"),
    ]
    for command in (*others, ()):
        told = done if not command else commands.q36eval(*command, state=state)
        for line in (told.stdout + told.stderr).splitlines():
            assert line in annotations or not line.lstrip().startswith("::"), command
            assert not re.search(r"\x1b|##\w*\[", line), command


def test_4_where_the_machine_and_not_the_branch_is_at_fault(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """A file that may not be read proves nothing of the branch: never FAIL."""
    unreadable = copied(folder_of("main"), tmp_path / "unreadable")
    (unreadable / "model.safetensors").chmod(0)
    state, stderr = tmp_path / "state", tmp_path / "stderr"
    child = forked.start(
        *("gate", "--branch", str(unreadable), *weights),
        state=state,
        stderr=stderr,
        before=forked.without_privileges,
    )
    assert child.wait() == 4
    assert "Traceback" not in stderr.read_text()
    (run,) = runs(state)
    assert run.verdict is Verdict.INCONCLUSIVE
    assert "model.safetensors cannot be read: Permission denied" in run.report.criteria[0].reason


class PanicException(BaseException):
    """A panic inside tokenizers."""


@pytest.mark.parametrize(("error", "code"), [(RuntimeError, "internal-error"), (PanicException, "tokenizer-failed")])
def test_a_crash_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], code: str
) -> None:
    monkeypatch.setattr(History, "open", mock.Mock(side_effect=error("api_key=hunter2")))
    monkeypatch.setenv("WORK_API_KEY", "api_key=hunter2")
    ended = commands.q36eval("gate", "--branch", "bf16", *SKIPPING, state=tmp_path, code=4)
    assert (commands.code_of(ended), (tmp_path / "crash.log").stat().st_mode & 0o777) == (code, 0o600)
    assert "hunter2" not in (tmp_path / "crash.log").read_text()


@pytest.mark.parametrize(
    ("sent", "code", "word"),
    [
        ([signal.SIGINT], 130, "Interrupted."),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGTERM], 143, "Stopped by SIGTERM."),
    ],
)
def test_130_for_ctrl_c_and_143_for_sigterm_and_the_run_resumes(
    tmp_path: Path, weights: tuple[str, ...], sent: list[signal.Signals], code: int, word: str
) -> None:
    """However often it is sent while the run is put away."""
    state, stderr, closes = tmp_path / "state", tmp_path / "stderr", tmp_path / "closes"

    def before() -> None:
        forked.awaiting_ctrl_c()
        whole = History.finish_run

        def finish(*arguments: Any, **options: Any) -> Any:
            closes.touch()
            if len(sent) > 1:
                signal.pause()
            return whole(*arguments, **options)

        History.finish_run = finish  # type: ignore[method-assign]

    child = forked.start("gate", "--branch", "bf16", *weights, state=state, stderr=stderr, before=before)
    child.until(lambda: child.has_said("inspecting"))
    os.kill(child.pid, sent[0])
    child.until(closes.exists)
    with contextlib.suppress(ProcessLookupError):
        for number in sent[1:] * 100:
            os.kill(child.pid, number)
            time.sleep(0.005)
    assert child.wait() == code
    (run,) = runs(state)
    assert run.state is RunState.INTERRUPTED
    sentence = said(stderr.read_text())
    assert sentence == f"q36eval: {word} What was measured is kept; continue it with --resume {run.id}."
    commands.q36eval("gate", "--branch", "bf16", *weights, "--resume", run.id, state=state, code=0)
    assert [(found.id, found.verdict) for found in runs(state)] == [(run.id, Verdict.PASS)]


def test_a_signal_after_the_verdict_takes_nothing_of_it(tmp_path: Path, weights: tuple[str, ...]) -> None:
    state, stderr = tmp_path / "state", tmp_path / "stderr"

    def before() -> None:
        from q36eval.run import measure

        written = measure.note

        def then_told(history: History, run_id: str, kind: EventKind, message: str) -> None:
            written(history, run_id, kind, message)
            if kind is EventKind.FINISHED:
                os.kill(os.getpid(), signal.SIGTERM)

        measure.note = then_told

    child = forked.start("gate", "--branch", "bf16", *weights, state=state, stderr=stderr, before=before)
    assert child.wait() == 143
    (run,) = runs(state)
    assert run.verdict is Verdict.PASS
    assert said(stderr.read_text()).endswith(f"had ended, and keeps its verdict: q36eval history show {run.id}.")


@contextlib.contextmanager
def full_after(pages: int) -> Iterator[None]:
    """SQLite's own limit on a database's size; what it says of one is what it says of a full disk."""

    def limit(connection: Any, _record: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(Engine, "connect", limit)


def test_4_when_the_disk_of_the_history_is_full_and_nothing_is_lost(tmp_path: Path) -> None:
    """Wherever in a run the disk fills: one sentence, never a verdict that was not kept, and the run resumes."""
    gate = ("gate", "--branch", "bf16", *SKIPPING)  # by the family's policy: INCONCLUSIVE, and some pages long
    History.open(tmp_path / "history.sqlite").close()
    empty = tmp_path / "empty.sqlite"  # without the pages that migrations left free
    with contextlib.closing(sqlite3.connect(tmp_path / "history.sqlite")) as database:
        database.execute("VACUUM INTO ?", (str(empty),))
    begun: list[bool] = []
    for spare in range(0, 60, 4):
        state = tmp_path / f"state-{spare}"
        state.mkdir()
        shutil.copy(empty, state / "history.sqlite")
        with full_after(empty.stat().st_size // 4096 + spare):
            done = commands.q36eval(*gate, state=state)
        if done.returncode == 3:
            break
        assert done.returncode == 4
        assert "database or disk is full; make room; everything written before is kept" in said(done.stderr)
        begun.append(bool(runs(state)))
        for run in runs(state):
            assert run.verdict is None
            assert f"--resume {run.id}" in done.stderr
            assert commands.q36eval(*gate, "--resume", run.id, state=state).returncode == 3
            assert runs(state)[0].verdict is Verdict.INCONCLUSIVE
    assert any(begun)  # it filled in the middle of a run


@pytest.mark.parametrize(
    ("modes", "needle"),
    [
        ({"history.sqlite": 0o444}, "readonly database"),
        ({"history.sqlite": 0o444, ".": 0o555}, "Permission denied"),
    ],
)
def test_2_when_nothing_can_be_kept_told_before_anything_is_measured(
    tmp_path: Path, weights: tuple[str, ...], modes: dict[str, int], needle: str
) -> None:
    (state := tmp_path / "state").mkdir()
    History.open(state / "history.sqlite").close()
    for name, mode in modes.items():
        (state / name).chmod(mode)
    stderr = tmp_path / "stderr"
    gate = ("gate", "--branch", "bf16", *weights)
    child = forked.start(*gate, state=state, stderr=stderr, before=forked.without_privileges)
    assert child.wait() == 2
    assert needle in said(stderr.read_text())
    assert "Q36EVAL_STATE" in said(stderr.read_text())
    assert "inspecting" not in stderr.read_text()
    state.chmod(0o755)
    (state / "history.sqlite").chmod(0o644)
    assert runs(state) == []


def test_4_when_a_passing_verdict_cannot_be_reported(tmp_path: Path, weights: tuple[str, ...]) -> None:
    """A pipeline that reads reports must not go on with an older one; the verdict itself is kept."""
    state, out = tmp_path / "state", tmp_path / "out"
    out.mkdir()
    (out / "report.json").symlink_to("/dev/full")  # every write to it finds no space left
    options = ("--out", str(out), *weights)
    done = commands.q36eval("gate", "--branch", "bf16", *options, state=state, code=4)
    sentence = said(done.stderr)
    assert "report.json could not be written: No space left on device" in sentence
    assert sentence.count("in history") == 1
    assert "kept" not in sentence
    assert not os.path.lexists(out / "report.json")
    assert [run.verdict for run in runs(state)] == [Verdict.PASS]
    assert '"verdict": "PASS"' in commands.q36eval("report", "latest", "--format", "json", state=state).stdout


# -- what a person can mend: one sentence with its code and the names there are; no run is begun, nothing written

ROWS = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text(encoding="utf-8"))
WRITTEN = "--branch main --owner eva --reason 'known, fixed in the next build'"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of one run, which failed."""
    folder = tmp_path_factory.mktemp("state")
    judge_run(open_history(folder), 80, date(2026, 3, 1))
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["command"])
def test_what_a_person_can_mend_is_one_sentence(
    row: dict[str, Any], judged: Path, request: pytest.FixtureRequest
) -> None:
    if row.get("elsewhere"):
        request.getfixturevalue("elsewhere")
    history = open_history(judged)
    (run,) = history.summaries()
    soon = datetime.now(UTC).date() + timedelta(days=30)
    command = row["command"].format(run=run.id, empty=judged / "empty", soon=soon, written=WRITTEN)
    done = commands.q36eval(*shlex.split(command), state=judged)
    assert (done.returncode, done.stdout, commands.code_of(done)) == (row.get("exit", 2), "", row["code"])
    assert [line.startswith("q36eval: ") for line in done.stderr.splitlines()].count(True) == 1
    assert [name for name in row["names"] if name not in done.stderr] == [], done.stderr
    assert ([one.id for one in history.summaries()], history.waiver_records()) == ([run.id], [])
