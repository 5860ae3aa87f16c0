"""Opens the database: SQLite settings, transactions and migrations."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from q36eval.errors import StorageError, UsageError

HEAD = "0004"
"""The newest migration; a test holds it to the files in `migrations/versions`."""

BUSY_TIMEOUT_MS = 30_000

WRITE: dict[str, Any] = {"sqlite_begin": "BEGIN IMMEDIATE"}
"""Execution options of a writing connection: it waits for its turn at the start, so it never loses it half way."""


REMEDIES = {
    "full": "make room; everything written before is kept",
    "I/O": "the disk, or a limit on file sizes, refused it; everything written before is kept",
    "readonly": "make it writable, or name another folder with Q36EVAL_STATE",
    "locked": "another process has held it for too long; try again when that has ended",
}
"""What a person can do, by a word of SQLite's message."""


@contextmanager
def used(database: str | None) -> Iterator[None]:
    """What the disk refuses in here is one sentence. A mistake of ours (a broken constraint, bad SQL) stays one.

    Raises:
        StorageError: the database could not be read or written; nothing of the transaction was.
    """
    try:
        yield
    except DatabaseError as error:
        if type(error) not in (OperationalError, DatabaseError):
            raise
        raise StorageError(f"The history database {database} cannot be used: {_told(error)}.") from error


def _told(error: DatabaseError | sqlite3.DatabaseError) -> str:
    """SQLite's own words, and what to do."""
    words = str(error.orig if isinstance(error, DatabaseError) else error)
    remedy = next((remedy for word, remedy in REMEDIES.items() if word in words), None)
    return words if remedy is None else f"{words}; {remedy}"


def open_engine(path_or_url: Path | str) -> Engine:
    """An engine on a database migrated to HEAD.

    Raises:
        UsageError: the file is no database of ours, cannot be opened, or was written by a newer version.
    """
    url = _url(path_or_url)
    database = url.database
    assert database is not None
    try:
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"history folder {Path(database).parent} cannot be made: {error.strerror}.") from error
    engine = create_engine(url)
    event.listen(engine, "connect", _configure_connection)
    event.listen(engine, "begin", _begin)
    try:
        # in this order: a file that is refused stays as it was
        _migrate(engine, database)
        _switch_to_wal(engine)
    except (DatabaseError, sqlite3.DatabaseError) as error:
        engine.dispose()
        raise UsageError(f"history database {database} cannot be used: {_told(error)}.") from error
    return engine


def _url(path_or_url: Path | str) -> URL:
    text_form = str(path_or_url)
    if "://" not in text_form:
        return URL.create("sqlite", database=text_form)
    try:
        url = make_url(text_form)
    except ArgumentError as error:
        raise UsageError(f"{text_form!r} is no database URL; give a file or sqlite:///FILE.") from error
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        raise UsageError(f"history is kept in an SQLite file; {text_form!r} is none: give a file or sqlite:///FILE.")
    return url


def _configure_connection(dbapi_connection: Any, _record: Any) -> None:
    # the driver must not open transactions on its own: `_begin` does
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


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


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(engine: Engine, database: str) -> None:
    with engine.connect() as connection:
        if _version(connection) == HEAD:
            return
    # imported only when there is something to migrate: it costs a quarter of a second
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        # read again under the write lock: another process may have migrated meanwhile
        version = _version(connection)
        if version is not None and version not in known:
            raise UsageError(
                f"history database {database} was written by a newer q36eval (schema {version}, this one knows up to "
                f"{HEAD}): upgrade q36eval or name another file."
            )
        if version is None and inspect(connection).get_table_names():
            raise UsageError(f"{database} is a database of something else: name another file for the history.")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
