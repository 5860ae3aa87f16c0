"""Many processes write one history at once, and some die half way."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select

from q36eval.errors import UsageError
from q36eval.gate import Waiver
from q36eval.history import EventKind, History, RunState
from q36eval.history import _connection as opening
from q36eval.history import _tables as tables
from q36eval.interrupts import stoppable
from q36eval.records import Verdict
from tests.q36eval.history.conftest import fresh
from tests.q36eval.history.gates import BATCH, answer, begin, child, figure, gate, outcome, write_batches
from tests.raising import raises

GATES, BATCHES, KILLS = 8, 4, 12


@pytest.mark.long
def test_eight_gates_write_at_once_and_nothing_is_lost(database: str, history: History) -> None:
    def work(branch: str) -> None:
        own = History.open(database)
        gate(own, branch, BATCHES)
        own.close()

    with ExitStack() as stack:
        started = [stack.enter_context(child(lambda _, n=n: work(f"branch-{n}"))) for n in range(GATES)]
        assert [os.waitpid(process, 0)[1] for process, _ in started] == [0] * GATES
    runs = history.list_runs()
    assert sorted(run.branch for run in runs) == [f"branch-{n}" for n in range(GATES)]
    for run in runs:
        assert (run.state, run.verdict) == (RunState.FINISHED, Verdict.PASS)
        written = {item.item_key: item for item in history.items(run.id)}
        assert written == {
            found.item_key: found for found in (outcome(n, answer(run.branch, n)) for n in range(BATCHES * BATCH))
        }
        figures = [figure(f"figure {batch}", float(batch)) for batch in range(BATCHES)]
        assert history.measurements(run.id) == [*figures, figure("integrity_faults", 0.0)]
        assert [event.kind for event in history.events(run.id)] == [EventKind.RETRY] * BATCHES
    # a question or an answer that all share is there once
    ((texts, distinct),) = history._read(select(func.count(), func.count(tables.texts.c.sha256.distinct())))
    assert texts == distinct
    assert history._read(select(func.count()).select_from(tables.asked))[0][0] == BATCHES * BATCH


@pytest.mark.long
def test_a_kill_at_any_moment_leaves_whole_transactions_and_a_run_to_resume(database: str, history: History) -> None:
    rng = random.Random(8)
    for _ in range(KILLS):
        run = begin(history, "main")

        def work(pipe: int, run_id: str = run.id) -> None:
            write_batches(History.open(database), run_id, lambda: os.write(pipe, b".") and None)

        with child(work) as (process, told):
            said = len(os.read(told, 1))
            for _ in range(rng.randrange(6)):
                said += len(os.read(told, 1))
            for _ in range(rng.randrange(100_000)):  # somewhere within the writing of the next
                pass
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        items = history.items(run.id)
        assert len(items) % BATCH == 0
        assert len(items) >= said * BATCH
        assert items == [outcome(n, f"{run.id} {n}" * 20) for n in range(len(items))]
        history.update_run(run.id, state=RunState.RUNNING)
        history.add_items(run.id, [outcome(0, "again"), outcome(len(items), "more")])
        assert len(history.items(run.id)) == len(items) + 1
        assert history.finish_run(run.id).state is RunState.FINISHED
    if history._engine.dialect.name == "sqlite":
        with history._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "server"])
def test_processes_may_open_a_fresh_database_together(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    empty = str(tmp_path / "new" / "h.db") if kind == "file" else fresh(request.getfixturevalue("postgresql"))
    with ExitStack() as stack:
        started = [stack.enter_context(child(lambda _: History.open(empty).close())) for _ in range(4)]
        assert [os.waitpid(process, 0)[1] for process, _ in started] == [0] * 4
    assert History.open(empty).list_runs() == []


@pytest.mark.long
def test_of_two_who_write_the_same_waiver_at_once_one_does(database: str, history: History) -> None:
    waiver = Waiver(owner="Jana", reason="known", criterion="kl", expires=date(2099, 1, 1))

    def work(pipe: int) -> None:
        own = History.open(database)
        os.write(pipe, b".")
        with suppress(UsageError):
            own.add_waiver("f", "main", waiver)
        own.close()

    with ExitStack() as stack:
        started = [stack.enter_context(child(work)) for _ in range(4)]
        assert [os.waitpid(process, 0)[1] for process, _ in started] == [0] * 4
    assert list(history.waivers("f", "main").values()) == [waiver]
    with raises(UsageError, "waiver-exists", "1 of", "criterion kl", "Jana", "2099-01-01"):
        history.add_waiver("f", "main", waiver.model_copy(update={"owner": "Ada", "expires": date(2098, 1, 1)}))
    history.add_waiver("f", "main", waiver.model_copy(update={"expires": date(2099, 1, 2)}))
    history.add_waiver("f", "other", waiver)
    history.add_waiver("f", "main", waiver.model_copy(update={"criterion": None, "slice": "kl"}))
    history.revoke_waiver(1)
    assert len(history.waivers("f", "main")) == 2


@pytest.mark.long
@pytest.mark.parametrize("moment", ["BEGIN", "INSERT", "COMMIT"])
def test_a_write_that_a_signal_finds_leaves_no_lock_behind(
    history: History, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Interrupted while it held the lock, a connection kept it for as long as somebody had the traceback."""
    if moment == "BEGIN" and history._engine.dialect.name != "sqlite":
        pytest.skip("a server is not told in words to begin")
    monkeypatch.setattr(opening, "WAIT_SECONDS", 1.0)
    run, figures = begin(history, "interrupted"), [figure("figure", 1.0)]

    def committing(_connection: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def executed(_connection: Any, _cursor: Any, statement: str, *_others: Any) -> None:
        if statement.startswith(moment):
            os.kill(os.getpid(), signal.SIGINT)

    listener = ("commit", committing) if moment == "COMMIT" else ("after_cursor_execute", executed)
    event.listen(history._engine, *listener)
    try:
        with stoppable():
            with pytest.raises(KeyboardInterrupt) as interrupted:
                history.add_measurements(run.id, figures)
            assert history.finish_run(run.id, state=RunState.INTERRUPTED).state is RunState.INTERRUPTED
    finally:
        event.remove(history._engine, *listener)
    assert interrupted.tb is not None
    assert history.measurements(run.id) == figures, "it was written whole, and then interrupted"


def test_who_waits_for_another_process_can_be_stopped(database: str, history: History) -> None:
    if history._engine.dialect.name != "sqlite":
        pytest.skip("a server's locks are waited for by the server")
    run = begin(history, "waiting")
    other = History.open(database)
    with stoppable(), other._write(), ThreadPoolExecutor(1) as later:
        later.submit(lambda: (time.sleep(0.3), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            history.add_measurements(run.id, [figure("figure", 1.0)])  # by default ten minutes are waited
    other.close()
    assert history.measurements(run.id) == []
