"""Opening the database: its name, waiting for locks, and the check that the file stays the same."""

import os
import re
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from q36eval.errors import StorageError, UsageError
from q36eval.history._migration import migrate, refuse_other
from q36eval.interrupts import stop_if_told

PATIENCE_SECONDS = 30.0
"""The silent waiting time for another process's lock."""

MOMENT_SECONDS = 0.5
"""The time SQLite waits itself: it reacts to no signal meanwhile."""

WAIT_SECONDS = 600.0
"""The total waiting time for a lock: a person's backup or VACUUM of a large file takes minutes, a gate hours."""

WRITE: dict[str, Any] = {"sqlite_begin": "BEGIN IMMEDIATE"}
"""Execution options of a writing connection: it waits for its turn at the start, so it never loses it half way."""

POSTGRESQL = "postgresql+psycopg"

INSTALL = 'A history in PostgreSQL needs the "postgres" extra; install it with: pip install "q36eval[postgres]".'

CHANGED = "another version of q36eval may have changed it; use that version. Everything written is kept"

REMEDIES = {
    **dict.fromkeys(("full", "No space left"), "make room; everything written before is kept"),
    "I/O": "the disk, or a limit on file sizes, refused it; everything written before is kept",
    "readonly": "make it writable, or name another folder with Q36EVAL_STATE",
    "read-only": "make it writable, or name another database with Q36EVAL_HISTORY",
    "permission denied": "let this user create and write tables there, or name another database",
    "lock": "another process has held it for too long; try again when that has ended",
    "unable to open": "its file system is read-only, or this user may not open it; see docs/history.md, Several users",
    "does not exist": "create it, or name another database with Q36EVAL_HISTORY",
    **dict.fromkeys(("no such column", "no such table", "has no column named"), CHANGED),
    **dict.fromkeys(("server running", "server closed", "administrator", "database system is"), "start it again"),
}
"""Remedies for a person, by words of the database's message."""


def sentence_of(error: Exception) -> str:
    """The database's own words in one line, and the remedy."""
    origin = error.orig if isinstance(error, DatabaseError) else error
    words = "; ".join(line.strip() for line in str(origin).splitlines() if line.strip()).rstrip(".?")
    remedy = next((remedy for word, remedy in REMEDIES.items() if word in words), None)
    return words if remedy is None else f"{words}; {remedy}"


def shown(url: URL) -> str:
    """A file, or a URL without its password and its options (which may hold one)."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername="postgresql", query={}).render_as_string(hide_password=True)


def open_engine(path_or_url: Path | str, *, upgrade: bool = True) -> Engine:
    """An engine on a database of schema HEAD; an older one is migrated, or refused without `upgrade`.

    Raises:
        UsageError: it is not our database, cannot be opened or reached, was written by a newer version, or would have
            to be changed first.
    """
    url = _url(path_or_url)
    of_server = url.get_backend_name() == "postgresql"
    if not upgrade and not of_server and not Path(str(url.database)).exists():
        raise UsageError("history-missing", f"There is no history {shown(url)}, and this command may not create one.")
    engine = _postgresql(url, upgrade) if of_server else _sqlite(url, upgrade)
    try:
        # in this order: a refused file stays unchanged
        if not upgrade:
            refuse_other(engine, shown(url))
        else:
            migrate(engine, shown(url), WRITE)
            if not of_server:
                _switch_to_wal(engine)
    except (DatabaseError, sqlite3.DatabaseError, UsageError) as error:
        engine.dispose()
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            "history-unusable", f"The history database {shown(url)} cannot be used: {sentence_of(error)}."
        ) from error
    return engine


def _url(path_or_url: Path | str) -> URL:
    """A file or a URL; of a URL that is refused only its beginning is shown, since a password may follow.

    Raises:
        UsageError: it is neither: a URL that is not whole would become a file that is called after the password.
    """
    given = str(path_or_url)
    refused = UsageError(
        "history-url-invalid", f"The history {re.split(r'[^a-z]', given)[0][:20]}:… cannot be read; {FORMS}."
    )
    if "://" not in given:
        if re.match(r"[a-z+]+(:|//).*@", given) and not Path(given).exists():
            raise refused
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as error:
        raise refused from error
    if url.drivername in (POSTGRESQL, "postgresql", "postgres"):
        if any("@" in (part or "") for part in (url.host, url.database, url.username)) or ":" in (url.database or ""):
            raise refused  # an @, a / or a : in a user or password, which a URL writes as %40, %2F or %3A
        return url.set(drivername=POSTGRESQL)
    if not url.drivername.startswith("sqlite") or not url.database or url.database == ":memory:":
        raise refused
    return url


FORMS = (
    "give a file, sqlite:///FILE or postgresql://USER@HOST/DATABASE; write an @, / or : in a user or password as %40, "
    "%2F or %3A"
)


ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 60_000}
"""How soon the loss of a silent server is detected: s, s, number, ms."""


def _postgresql(url: URL, writing: bool) -> Engine:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise UsageError("package-missing", INSTALL)
    # a connection closed by the server is reopened before use
    options = [str(url.query.get("options", "")), f"-c lock_timeout={int(1000 * WAIT_SECONDS)}"]
    options += [] if writing else ["-c default_transaction_read_only=on"]
    arguments = {"connect_timeout": int(PATIENCE_SECONDS), **ALIVE, "options": " ".join(options)}
    return create_engine(url, pool_pre_ping=True, connect_args=arguments)


def _sqlite(url: URL, writing: bool) -> Engine:
    assert url.database is not None
    file = Path(url.database)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "folder-unwritable", f"The history folder {file.parent} cannot be made: {error.strerror}."
        ) from error
    if writing:
        with suppress(OSError):  # what opens it says why it cannot; SQLite itself never lets a group write
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))

    def connect() -> sqlite3.Connection:
        """A deleted file is not created again."""
        address = f"file:{quote(str(file.absolute()))}?mode=rw"
        return sqlite3.connect(address, uri=True, timeout=PATIENCE_SECONDS, check_same_thread=False)

    engine = create_engine(url, creator=connect)
    event.listen(engine, "connect", _configuring(writing))
    event.listen(engine, "begin", _begin)
    with suppress(OSError):
        _FILES[engine] = _number(file)
    return engine


def _configuring(writing: bool) -> Callable[..., None]:
    pragmas = ("foreign_keys = ON", "synchronous = NORMAL", *([] if writing else ["query_only = ON"]))

    def configure(dbapi_connection: Any, _record: Any) -> None:
        dbapi_connection.isolation_level = None  # the driver must not open transactions on its own: `_begin` does
        for pragma in pragmas:
            dbapi_connection.execute(f"PRAGMA {pragma}")

    return configure


def _begin(connection: Connection) -> None:
    """Begin a transaction; a writing one waits for its turn, reports a long wait once, and can be stopped."""
    statement = connection.get_execution_options().get("sqlite_begin")
    if statement is None:
        connection.exec_driver_sql("BEGIN")
        return
    begun, said = time.monotonic(), False
    _set_busy_timeout(connection, MOMENT_SECONDS)  # no signal is handled meanwhile
    try:
        while True:
            try:
                connection.exec_driver_sql(statement)
                return
            except OperationalError as error:
                if "locked" not in str(error.orig) or time.monotonic() - begun >= WAIT_SECONDS:
                    raise
            stop_if_told()
            if not said and time.monotonic() - begun >= PATIENCE_SECONDS:
                said = True
                with suppress(OSError, ValueError):  # a closed stream does not affect the wait
                    print(
                        f"q36eval: another process holds the history {connection.engine.url.database}; waiting for it, "
                        f"{WAIT_SECONDS:,.0f} s at most.",
                        file=sys.stderr,
                        flush=True,
                    )
    finally:
        _set_busy_timeout(connection, PATIENCE_SECONDS)


def _set_busy_timeout(connection: Connection, seconds: float) -> None:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(1000 * min(seconds, WAIT_SECONDS))}")


_FILES: "weakref.WeakKeyDictionary[Engine, tuple[int, int]]" = weakref.WeakKeyDictionary()
"""Device and number of the file that each engine was opened on."""


def _number(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def check_file(engine: Engine) -> None:
    """Check before a write that the file is the one that was opened.

    Raises:
        StorageError: it was deleted or replaced.
    """
    if engine not in _FILES:
        return
    try:
        now = _number(Path(str(engine.url.database)))
    except OSError as error:
        raise StorageError(
            "history-deleted", f"The history {shown(engine.url)} was deleted while it was in use ({error.strerror})."
        ) from error
    if now != _FILES[engine]:
        raise StorageError(
            "history-replaced", f"The history {shown(engine.url)} was replaced by another while it was in use."
        )


def _switch_to_wal(engine: Engine) -> None:
    """Readers then never wait for the writer. The switch itself ignores the busy timeout, so it is retried."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with closing(engine.raw_connection()) as raw:
            try:
                raw.cursor().execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
        time.sleep(0.05)
