"""How the database is opened: what names it, who may wait for whom, and that it stays the one that was opened."""

import os
import re
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from q36eval.errors import StorageError, UsageError
from q36eval.history._migration import migrate, refuse_other
from q36eval.interrupts import stop_if_told

PATIENCE_SECONDS = 30.0
"""For so long another process's lock is waited for without a word."""

MOMENT_SECONDS = 0.5
"""For so long SQLite waits by itself: it hears no signal meanwhile."""

WAIT = "Q36EVAL_HISTORY_WAIT"
"""The environment variable for how many seconds a lock is waited for in all."""

WAIT_SECONDS = 600.0
"""Where nothing else is said: a person's backup or VACUUM of a large file takes minutes, and a gate hours."""

WRITE: dict[str, Any] = {"sqlite_begin": "BEGIN IMMEDIATE"}
"""Execution options of a writing connection: it waits for its turn at the start, so it never loses it half way."""

POSTGRESQL = "postgresql+psycopg"

INSTALL = 'A history in PostgreSQL needs the "postgres" extra; install it with: pip install "q36eval[postgres]".'

CHANGED = (
    "another version of q36eval may have changed it meanwhile; start again with that one, what was written is kept"
)

REMEDIES = {
    "full": "make room; everything written before is kept",
    "No space left": "make room; everything written before is kept",
    "I/O": "the disk, or a limit on file sizes, refused it; everything written before is kept",
    "readonly": "make it writable, or name another folder with Q36EVAL_STATE",
    "read-only": "make it writable, or name another database with Q36EVAL_HISTORY",
    "permission denied": "let this user create and write tables there, or name another database",
    "locked": "another process has held it for too long; try again when that has ended",
    "Connection refused": "start the server, or name another database with Q36EVAL_HISTORY",
    "lock timeout": "another process has held it for too long; try again when that has ended",
    "unable to open": "this user may not open it or its folder; see docs/history.md, Several users",
    "does not exist": "create it, or name another database with Q36EVAL_HISTORY",
    "authentication failed": "check the user and the password in its URL, or in PGPASSWORD",
    "no password supplied": "put the password into its URL, into PGPASSWORD or into a password file",
    "closed the connection": "it was stopped or the network broke; everything written before is kept",
    "terminating connection": "it was stopped; everything written before is kept",
    "no such column": CHANGED,
    "no such table": CHANGED,
    "has no column named": CHANGED,
}
"""What a person can do, by words of the database's message."""


class HistoryLostError(StorageError):
    """The history that was opened is not there any more: its file was deleted, or another took its place."""


def sentence_of(error: Exception) -> str:
    """The database's own words in one line, and what to do."""
    origin = error.orig if isinstance(error, DatabaseError) else error
    words = " ".join(line.strip() for line in str(origin).splitlines() if line.strip()).rstrip(".")
    remedy = next((remedy for word, remedy in REMEDIES.items() if word in words), None)
    return words if remedy is None else f"{words}; {remedy}"


def shown(url: URL) -> str:
    """A file, or a URL without its password and its options (which may hold one)."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def open_engine(path_or_url: Path | str, *, upgrade: bool = True) -> Engine:
    """An engine on a database of HEAD, to which it is migrated, or where that is not wanted must have been.

    Raises:
        UsageError: it is no database of ours, cannot be opened or reached, was written by a newer version, or would
            have to be changed first.
    """
    url = _url(path_or_url)
    of_server = url.get_backend_name() == "postgresql"
    if not upgrade and not of_server and not Path(str(url.database)).exists():
        raise UsageError("history-missing", f"There is no history {shown(url)}, and this command may not create one.")
    engine = _postgresql(url, upgrade) if of_server else _sqlite(url, upgrade)
    try:
        # in this order: a file that is refused stays as it was
        if not upgrade:
            refuse_other(engine, shown(url))
        else:
            migrate(engine, shown(url), WRITE)
            if not of_server:
                _switch_to_wal(engine)
        _remember_file(engine)
    except (DatabaseError, sqlite3.DatabaseError) as error:
        engine.dispose()
        raise UsageError(
            "history-unusable", f"history database {shown(url)} cannot be used: {sentence_of(error)}."
        ) from error
    except UsageError:
        engine.dispose()
        raise
    return engine


def _url(path_or_url: Path | str) -> URL:
    """A file or a URL; of a URL that is refused only its beginning is shown, since a password may follow.

    Raises:
        UsageError: it is neither: a URL that is not whole would become a file that is called after the password.
    """
    given = str(path_or_url)
    scheme = re.split(r"\W", given)[0]
    if "://" not in given:
        if re.match(URL_LIKE, given) and not Path(given).exists():
            raise UsageError(
                "history-url-invalid", f"The history {scheme[:20]}:… is no URL that can be read, and no file; {FORMS}."
            )
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as error:
        raise UsageError(
            "history-url-invalid", f"The history URL {given.partition('://')[0][:20]}://… cannot be read; {FORMS}."
        ) from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres") and url.drivername in (POSTGRESQL, "postgresql", "postgres"):
        if any("@" in (part or "") for part in (url.host, url.database, url.username)) or ":" in (url.database or ""):
            raise UsageError(
                "history-url-invalid",
                "The history URL postgresql://… cannot be read: write an @ in a user or a password as %40, a / as %2F "
                "and a : as %3A.",
            )
        return url.set(drivername=POSTGRESQL)
    if backend != "sqlite" or not url.database or url.database == ":memory:":
        raise UsageError(
            "history-url-invalid",
            f"History is kept in an SQLite file or in PostgreSQL; {url.drivername[:20]}://… is neither: {FORMS}.",
        )
    return url


URL_LIKE = re.compile(
    r"(?i)(?:postgres\w*|sqlite|mysql|mariadb|oracle|mssql|https?)[+\w]*(?::|//)|[^/\\]*//?[^/\\]*:[^/\\]*@"
)
"""What begins like a URL, or names a user and a password as only a URL does."""

FORMS = "give a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE"


ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""How soon a server that went away without a word is noticed: s, s, number, ms."""


def _postgresql(url: URL, writing: bool) -> Engine:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise UsageError("package-missing", INSTALL)
    # a connection that the server closed meanwhile is made anew before it is used
    read_only = {} if writing else {"options": "-c default_transaction_read_only=on"}
    arguments = {"connect_timeout": int(PATIENCE_SECONDS), **ALIVE, **read_only}
    engine = create_engine(url, pool_pre_ping=True, connect_args=arguments)
    event.listen(engine, "connect", _limit_lock_waits)
    return engine


def _limit_lock_waits(dbapi_connection: Any, _record: Any) -> None:
    with dbapi_connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = {int(1000 * wait_seconds())}")
    dbapi_connection.commit()


def _sqlite(url: URL, writing: bool) -> Engine:
    assert url.database is not None
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("folder-unwritable", f"history folder {folder} cannot be made: {error.strerror}.") from error
    if writing:
        with suppress(OSError):  # what opens it says why it cannot; SQLite itself never lets a group write
            os.close(os.open(url.database, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    engine = create_engine(url)
    event.listen(engine, "do_connect", _connecting(engine))
    event.listen(engine, "connect", _configure_connection)
    if not writing:
        event.listen(engine, "connect", _refuse_writing)
    event.listen(engine, "begin", _begin)
    return engine


def _configure_connection(dbapi_connection: Any, _record: Any) -> None:
    # the driver must not open transactions on its own: `_begin` does
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_patience_ms()}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _refuse_writing(dbapi_connection: Any, _record: Any) -> None:
    dbapi_connection.execute("PRAGMA query_only = ON")


def _begin(connection: Connection) -> None:
    """Begin a transaction; a writing one waits for its turn, says so once where that takes long, and can be stopped."""
    statement = connection.get_execution_options().get("sqlite_begin")
    if statement is None:
        connection.exec_driver_sql("BEGIN")
        return
    begun, said = time.monotonic(), False
    try:
        while not _begun(connection, statement, begun + wait_seconds()):
            stop_if_told()
            if not said and time.monotonic() - begun >= PATIENCE_SECONDS:
                said = True
                say_waiting(str(connection.engine.url.database), wait_seconds())
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {_patience_ms()}")


def _begun(connection: Connection, statement: str, deadline: float) -> bool:
    """Try for a moment, since nothing else is heard meanwhile."""
    left = min(deadline - time.monotonic(), MOMENT_SECONDS, PATIENCE_SECONDS)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {max(1, int(1000 * left))}")
    try:
        connection.exec_driver_sql(statement)
    except OperationalError as error:
        if "locked" not in str(error.orig) or time.monotonic() >= deadline:
            raise
        return False
    return True


def _patience_ms() -> int:
    return int(1000 * min(PATIENCE_SECONDS, wait_seconds()))


def wait_seconds() -> float:
    """How long a lock of another process is waited for.

    Raises:
        UsageError: the environment says no number of seconds.
    """
    given = os.environ.get(WAIT, "")
    try:
        seconds = float(given) if given else WAIT_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 7 * 86_400:
        raise UsageError("setting-invalid", f"{WAIT} is a number of seconds, at most a week; {given[:40]!r} is none.")
    return seconds


def say_waiting(name: str, seconds: float) -> None:
    """One sentence for whoever looks on; a stream that is closed takes nothing from the wait."""
    sentence = (
        f"q36eval: another process holds the history {name}; waiting for it, {seconds:,.0f} s at most ({WAIT} says how "
        "long)."
    )
    with suppress(OSError, ValueError):
        print(sentence, file=sys.stderr, flush=True)


@contextmanager
def said_when_long(connection: Connection) -> Iterator[None]:
    """A server's locks are waited for within statements: somebody beside looks, and says so where it takes long."""
    if connection.dialect.name == "sqlite":
        yield
        return
    assert connection.connection.driver_connection is not None
    waiting = _WAITING.bindparams(pid=connection.connection.driver_connection.info.backend_pid)
    done = threading.Event()

    def look() -> None:
        while not done.wait(PATIENCE_SECONDS):
            with suppress(Exception), connection.engine.connect() as beside:
                if beside.execute(waiting).scalar() and not done.is_set():
                    say_waiting(shown(connection.engine.url), wait_seconds())
                    return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        done.set()


_WAITING = text("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = :pid")


def _connecting(engine: Engine) -> Callable[..., None]:
    """No connection is made to a file that took the place of the one that was opened, nor is that made anew empty."""

    def check(*_: Any) -> None:
        check_file(engine)

    return check


_FILES: "weakref.WeakKeyDictionary[Engine, tuple[int, int]]" = weakref.WeakKeyDictionary()
"""Device and number of the file that each engine was opened on."""


def _remember_file(engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        status = os.stat(str(engine.url.database))
        _FILES[engine] = (status.st_dev, status.st_ino)


def check_file(engine: Engine) -> None:
    """Raises HistoryLostError where the file is not the one that was opened."""
    opened = _FILES.get(engine)
    if opened is None:
        return
    try:
        status = os.stat(str(engine.url.database))
    except FileNotFoundError as error:
        raise HistoryLostError(
            "history-deleted", f"The history {shown(engine.url)} was deleted while it was in use."
        ) from error
    except OSError as error:
        raise StorageError(
            "history-unusable", f"The history {shown(engine.url)} cannot be used: {error.strerror}."
        ) from error
    if (status.st_dev, status.st_ino) != opened:
        raise HistoryLostError(
            "history-replaced", f"The history {shown(engine.url)} was replaced by another while it was in use."
        )


def _switch_to_wal(engine: Engine) -> None:
    """Readers then never wait for the writer. The switch itself ignores the busy timeout, so it is retried."""
    deadline, patience, said = time.monotonic() + wait_seconds(), time.monotonic() + PATIENCE_SECONDS, False
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            if not said and time.monotonic() > patience:
                say_waiting(str(engine.url.database), wait_seconds())
                said = True
            time.sleep(0.05)
        finally:
            raw.close()
