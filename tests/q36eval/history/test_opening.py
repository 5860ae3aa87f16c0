"""What names a history and who may use it: URLs, locks, a file that is gone, several users."""

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from q36eval.errors import StorageError, UsageError
from q36eval.history import History
from q36eval.history import _connection as opening
from tests.q36eval.history.gates import begin, child, figure, gate, outcome
from tests.raising import raises

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
