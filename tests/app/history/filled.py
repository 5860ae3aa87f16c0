"""Judged runs with all that history can hold of one: items, files, signatures, blessings, an earlier decision."""

from datetime import UTC, date, datetime
from pathlib import Path

from q36eval.config import Paths
from q36eval.gate import Waiver
from q36eval.history import History, RunRecord
from q36eval.history.decisions import circumstances_then, decided, evidence_of, policy_of, sign
from q36eval.records import Answer, ItemOutcome, ProbeFailure, ProbeName
from q36eval.token_files import TOKENS, WORST
from tests import outcomes
from tests.app.judged_runs import items_of, judge_run, open_history

DAY = date(2026, 3, 1)
WAIVER = Waiver(owner="eva", reason="known", criterion="tools", expires=date(2026, 3, 31))
ODD = '=cmd|"/c calc"!A1\n\x1b[31m<script>\N{RIGHT-TO-LEFT OVERRIDE}'


def outcome(key: str, score: float | None, *, text: str = ODD) -> ItemOutcome:
    """An item that the reference gets right."""
    said = Answer(score=score, text=text, error=None if score is not None else "it broke")
    asked = {"group": "sums", "prompt": "2 + 2 =", "expected": "4"}
    return outcomes.outcome(ProbeName.EVALS, key, said, Answer(score=1.0, text="4"), **asked)


def fill(state: Path, broken: int = 80, content: bytes = b"tokens") -> tuple[History, RunRecord]:
    """A failure that was blessed, signed and then waived, with two files and a crash."""
    history = open_history(state)
    items = [outcome("a", 1.0), outcome("b", 0.0), outcome("c", None), *items_of(broken)]
    crash = ProbeFailure(probe=ProbeName.KL, reason="it broke", kind="crashed")
    run = judge_run(history, broken, DAY, items=items, failures=[crash])
    keep_files(state, run, content)
    history.bless(run.id, "eva", "release 1")
    history.add_event(run.id, "begun", "began", datetime(2026, 3, 1, tzinfo=UTC))
    history.add_waiver("sandbox", "main", WAIVER)
    circumstances = circumstances_then(history, run).model_copy(update={"waivers": (WAIVER,)})
    report = decided(policy_of(run), evidence_of(history, run, circumstances), circumstances)
    run = history.decide_again(run.id, report, circumstances)
    sign(history, run, "jan", "read it")
    return history, history.get_run(run.id)


def keep_files(state: Path, run: RunRecord, content: bytes) -> None:
    """As a run leaves them at its end."""
    folder = Paths(state, state).tokens(run.id)
    folder.mkdir(parents=True)
    (folder / TOKENS).write_bytes(content)
    (folder / WORST).write_bytes(b"[]")
