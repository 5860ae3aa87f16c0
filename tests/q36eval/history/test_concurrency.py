"""Many processes write one history at once, and some die half way."""

import os
import random
import signal
import stat
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import event, func, select

from q36eval.errors import StorageError, UsageError
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


# -- opening a history


UNREADABLE = {
    "no slashes": "postgresql:eva:s3cret@db/history",
    "no colon": "postgresql//eva:s3cret@db/history",
    "a port that is none": "postgresql://eva:s3cret@db:port/history",
    "an @ in the password": "postgresql://eva:s3@cret@db/history",
    "an @ and a / in the password": "postgresql://eva:s3@c/ret@db/history",
    "a / in the user": "postgresql://e/va:s3cret@db/history",
    "another database": "mysql://eva:s3cret@db/history",
    "no database at all": "s3cret://",
    "no file": "sqlite://",
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_url_that_is_not_whole_is_refused_unread(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        History.open(UNREADABLE[what])
    assert refused.value.code == "history-url-invalid"
    if what != "no database at all":
        assert not any(part in str(refused.value) for part in ("s3", "cret", "eva"))
    assert "\n" not in str(refused.value)
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", ["run:1.sqlite", "a@b.sqlite", "postgres.sqlite", "postgresql/history.sqlite"])
def test_a_file_may_be_called_whatever_it_likes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    history = History.open(name)
    gate(history, "main", 1)
    history.close()
    assert (tmp_path / name).is_file()


@pytest.mark.parametrize("what", ["deleted", "replaced"])
def test_a_file_that_is_deleted_or_replaced_is_noticed_at_the_next_write(tmp_path: Path, what: str) -> None:
    file, other = tmp_path / "history.sqlite", tmp_path / "other.sqlite"
    history = History.open(file)
    run = begin(history, "main")
    History.open(other).close()
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    if what == "replaced":
        other.replace(file)
    with raises(StorageError, f"history-{what}"):
        history.add_measurement(run.id, figure("late", 1.0))
    history.close()
    if what == "deleted":
        with raises(StorageError, "history-unusable"):
            history.summaries()
    assert file.exists() == (what == "replaced"), "nothing made it anew"


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("what", ["dropped", "empty", "another's"])
def test_a_server_s_database_that_was_made_anew_is_noticed(database: str, postgresql: str, what: str) -> None:
    from tests.q36eval.history.conftest import execute

    name = database.partition("@/")[2].partition("?")[0]
    history = History.open(database)
    run = begin(history, "main")
    server = postgresql.format(database="postgres")
    execute(server, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    if what != "dropped":
        execute(server, f"CREATE DATABASE {name}")
    if what == "another's":
        History.open(database).close()
    with pytest.raises((StorageError, UsageError)) as lost:
        history.add_items(run.id, [outcome(0, "late")])
    assert lost.value.code in ("history-unusable", "run-unknown")
    history.close()


@pytest.mark.long
def test_a_lock_is_waited_for_with_a_sentence_up_to_a_limit(
    database: str, history: History, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("PATIENCE_SECONDS", "MOMENT_SECONDS"):
        monkeypatch.setattr(opening, name, 0.05)
    run = begin(history, "main")
    for limit, freed in ((60.0, True), (0.3, False)):
        monkeypatch.setattr(opening, "WAIT_SECONDS", limit)
        own = History.open(database)
        reading, writing = os.pipe()

        def hold(pipe: int, freeing: int = reading, freed: bool = freed) -> None:
            other = History.open(database)
            with other._write() as connection:
                if connection.dialect.name == "postgresql":
                    connection.exec_driver_sql("LOCK TABLE runs, items, asked IN ACCESS EXCLUSIVE MODE")
                os.write(pipe, b".")
                os.read(freeing, 1)

        with child(hold) as (process, told):
            os.read(told, 1)
            if freed:
                import threading

                threading.Timer(0.5, lambda to=writing: os.write(to, b".")).start()
                own.add_items(run.id, [outcome(0, "waited")])
            else:
                with raises(StorageError, "history-unusable"):
                    own.add_items(run.id, [outcome(1, "in vain")])
                os.write(writing, b".")
            os.waitpid(process, 0)
        said = capfd.readouterr().err
        told = "://" not in database  # a server's locks are waited for without a word
        assert (f"holds the history {database}; waiting for it, {limit:,.0f} s" in said) == told, said
        own.close()
    assert [item.branch.text for item in history.items(run.id)] == ["waited"]


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can act as two users"
)


def as_user(user: int, group: int, umask: int, work: "object") -> int:
    """The exit status of a child of that user that does `work`: 0, 2 of a usage error, 4 of one of storage."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            os.umask(umask)
            work()  # type: ignore[operator]
            status = 0
        except UsageError as error:
            print(error, file=sys.stderr, flush=True)
            status = 2
        except StorageError as error:
            print(error, file=sys.stderr, flush=True)
            status = 4
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


EVA, JAN, TEAM, ALONE = 54_321, 54_322, 54_400, 54_401


@pytest.fixture
def team() -> Iterator[Path]:
    """A folder in which all of the group may write, and that gives its files to the group.

    Not below pytest's own: every session that begins takes others the right to walk through that.
    """
    with TemporaryDirectory() as made:
        place = Path(made)
        place.chmod(0o755)
        History.open(place / "first.sqlite").close()  # imports what a child of another user may not be allowed to read
        shared = place / "shared"
        shared.mkdir()
        os.chown(shared, EVA, TEAM)
        os.chmod(shared, 0o2770)
        yield shared


@pytest.mark.long
@needs_root
def test_two_users_share_a_history_of_their_group(team: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As docs/history.md says: a folder of the group with its bit set, and umask 007."""
    file = team / "history.sqlite"

    def gates(branch: str) -> None:
        history = History.open(file)
        gate(history, branch, 1)
        history.close()

    for user, branch in ((EVA, "main"), (JAN, "fp8-head"), (EVA, "main")):
        assert as_user(user, TEAM, 0o007, lambda b=branch: gates(b)) == 0, capfd.readouterr().err
    assert as_user(JAN, ALONE, 0o007, lambda: gates("stranger")) == 2
    assert "see docs/history.md, Several users" in capfd.readouterr().err
    assert [run.branch for run in History.open(file).list_runs()] == ["main", "fp8-head", "main"]
    # with umask 077 the file is its maker's, until that one opens it to the group
    file.unlink()
    assert as_user(EVA, TEAM, 0o077, lambda: gates("main")) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert as_user(JAN, TEAM, 0o077, lambda: gates("main")) == 2
    for beside in file.parent.glob("history.sqlite*"):
        os.chmod(beside, 0o660)
    for user in (JAN, EVA, JAN):
        assert as_user(user, TEAM, 0o077, lambda: gates("main")) == 0, capfd.readouterr().err
    assert len(History.open(file).list_runs()) == 4
