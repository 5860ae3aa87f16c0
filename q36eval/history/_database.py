"""Opens the database, an SQLite file or PostgreSQL: settings and transactions."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InternalError, OperationalError

from q36eval.errors import StorageError, UsageError
from q36eval.history._migrating import migrate, refuse_other

__all__ = ["WRITE", "open_engine", "shown", "used"]

BUSY_TIMEOUT_MS = 30_000

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


@contextmanager
def used(url: URL) -> Iterator[None]:
    """What the database refuses in here is one sentence. A mistake of ours (a broken constraint, bad SQL) stays one.

    Raises:
        StorageError: the database could not be read or written; nothing of the transaction was.
        UsageError: what was to be found or written in it is no text.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!a} holds bytes that are no text in UTF-8, which no history keeps.") from error
    except DatabaseError as error:
        if "cannot contain NUL" in str(error.orig):
            raise UsageError("A name holds a NUL character: what no history can keep in PostgreSQL.") from error
        if not _of_the_database(error):
            raise
        raise StorageError(f"The history database {shown(url)} cannot be used: {_told(error)}.") from error


def _of_the_database(error: DatabaseError) -> bool:
    # the privilege that PostgreSQL finds missing comes as an error of programming
    denied = getattr(error.orig, "sqlstate", None) == "42501"
    return denied or type(error) in (OperationalError, InternalError, DatabaseError)


def _told(error: Exception) -> str:
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
        raise UsageError(f"There is no history {shown(url)}, and none is made where nothing may be written.")
    engine = _postgresql(url, upgrade) if of_server else _sqlite(url, upgrade)
    try:
        # in this order: a file that is refused stays as it was
        if not upgrade:
            refuse_other(engine, shown(url))
            return engine
        migrate(engine, shown(url), WRITE)
        if engine.dialect.name == "sqlite":
            _switch_to_wal(engine)
    except (DatabaseError, sqlite3.DatabaseError) as error:
        engine.dispose()
        raise UsageError(f"history database {shown(url)} cannot be used: {_told(error)}.") from error
    except UsageError:
        engine.dispose()
        raise
    return engine


def _url(path_or_url: Path | str) -> URL:
    text = str(path_or_url)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # of the URL only its beginning is shown: a password may follow
        raise UsageError(
            f"The history URL {text.partition('://')[0]}://… cannot be read; give a file, sqlite:///FILE or "
            "postgresql://USER@HOST/DATABASE."
        ) from error
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres") and url.drivername in (POSTGRESQL, "postgresql", "postgres"):
        return url.set(drivername=POSTGRESQL)
    if backend != "sqlite" or not url.database or url.database == ":memory:":
        raise UsageError(
            f"History is kept in an SQLite file or in PostgreSQL; {url.drivername}://… is neither: give a file, "
            "sqlite:///FILE or postgresql://USER@HOST/DATABASE."
        )
    return url


def _postgresql(url: URL, writing: bool) -> Engine:
    from importlib.util import find_spec

    if find_spec("psycopg") is None:
        raise UsageError(INSTALL)
    # a connection that the server closed meanwhile is made anew before it is used
    read_only = {} if writing else {"options": "-c default_transaction_read_only=on"}
    arguments = {"connect_timeout": BUSY_TIMEOUT_MS // 1000, **read_only}
    return create_engine(url, pool_pre_ping=True, connect_args=arguments)


def _sqlite(url: URL, writing: bool) -> Engine:
    assert url.database is not None
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"history folder {folder} cannot be made: {error.strerror}.") from error
    engine = create_engine(url)
    event.listen(engine, "connect", _configure_connection)
    if not writing:
        event.listen(engine, "connect", _refuse_writing)
    event.listen(engine, "begin", _begin)
    return engine


def _configure_connection(dbapi_connection: Any, _record: Any) -> None:
    # the driver must not open transactions on its own: `_begin` does
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _refuse_writing(dbapi_connection: Any, _record: Any) -> None:
    dbapi_connection.execute("PRAGMA query_only = ON")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("sqlite_begin", "BEGIN"))


def _switch_to_wal(engine: Engine) -> None:
    """Readers then never wait for the writer. The switch itself ignores the busy timeout, so it is retried."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        finally:
            raw.close()
