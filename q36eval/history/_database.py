"""The database, an SQLite file or PostgreSQL: how it is opened, read and written."""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row, Table, UniqueConstraint, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InternalError, OperationalError

from q36eval.errors import StorageError, UsageError
from q36eval.history._migrating import migrate, refuse_other

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

Upserting = Callable[[Table], "sqlite.Insert | postgresql.Insert"]


class Connected:
    """Base of the history: every write is committed at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path_or_url: Path | str, *, upgrade: bool = True) -> Self:
        """Open (or make) an SQLite file, or a PostgreSQL database, and bring it to the newest schema.

        `path_or_url` is a file, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. Without `upgrade` one of another
        schema is refused, and left as it is.

        Raises:
            UsageError: not a database of ours, one written by a newer version, one that cannot be reached, or one that
                would have to be changed first.
        """
        return cls(open_engine(path_or_url, upgrade=upgrade))

    @property
    def name(self) -> str:
        """The file or the URL, as it may be shown: without a password."""
        return shown(self._engine.url)

    def close(self) -> None:
        """Give all connections back."""
        self._engine.dispose()

    def check_writable(self) -> None:
        """Refuse now what could not be written later, after hours of measuring.

        Raises:
            UsageError: the database is read-only, or its disk is full.
        """
        try:
            with self._write() as connection:  # a lock alone is granted on a read-only file too
                connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
        except StorageError as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with used(self._engine.url), self._engine.execution_options(**WRITE).begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with used(self._engine.url), self._engine.connect() as connection:
            yield connection

    def _read(self, query: Any) -> Sequence[Row[Any]]:
        with self._reading() as connection, self._whole():
            return connection.execute(query).all()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is read in here was written whole.

        Raises:
            UsageError: a row holds no JSON where it should.
        """
        try:
            yield
        except JSONDecodeError as error:
            raise UsageError(f"The history database {self.name} holds a row that is no JSON: {error}.") from error

    def give_back_room(self) -> None:
        """Make an SQLite file as small as what is in it; a server does so by itself.

        Raises:
            StorageError: another process uses it, or there is no room for a copy; the file keeps its size.
        """
        if self._engine.dialect.name != "sqlite":
            return
        raw = self._engine.raw_connection()
        try:
            with used(self._engine.url):
                for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    self._engine.dialect.do_execute(raw.cursor(), statement, ())
        finally:
            raw.close()


def upserting(connection: Connection) -> Upserting:
    """The INSERT of this database that knows ON CONFLICT."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def upsert(
    connection: Connection,
    table: Table,
    rows: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    staying: Collection[str] = (),
) -> None:
    """Insert rows of the same columns, or replace those that are equal in the table's key.

    The key are its unique columns, where it has such, else its primary key. Of a row that is replaced the columns
    `staying` stay as they were.
    """
    several = [rows] if isinstance(rows, Mapping) else list(rows)
    if not several:
        return
    unique = next((c for c in table.constraints if isinstance(c, UniqueConstraint)), table.primary_key)
    key = [column.name for column in unique.columns]
    statement = upserting(connection)(table)
    rest = {name: statement.excluded[name] for name in several[0] if name not in (*key, *staying)}
    if rest:
        statement = statement.on_conflict_do_update(index_elements=key, set_=rest)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=key)
    connection.execute(statement, several)


@contextmanager
def used(url: URL) -> Iterator[None]:
    """What the database refuses in here is one sentence. A mistake of ours (a broken constraint, bad SQL) stays one.

    Raises:
        StorageError: the database could not be read or written; nothing of the transaction was.
        UsageError: a text to search for or to write is none that the database can store.
    """
    try:
        yield
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object!a} is not valid UTF-8, so history cannot store it.") from error
    except DatabaseError as error:
        if "cannot contain NUL" in str(error.orig):
            raise UsageError("A name holds a NUL character, which PostgreSQL cannot store.") from error
        if not _of_the_database(error):
            raise
        raise StorageError(f"The history database {shown(url)} cannot be used: {_sentence(error)}.") from error


def _of_the_database(error: DatabaseError) -> bool:
    # the privilege that PostgreSQL finds missing comes as an error of programming
    denied = getattr(error.orig, "sqlstate", None) == "42501"
    return denied or type(error) in (OperationalError, InternalError, DatabaseError)


def _sentence(error: Exception) -> str:
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
        raise UsageError(f"There is no history {shown(url)}, and this command may not create one.")
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
        raise UsageError(f"history database {shown(url)} cannot be used: {_sentence(error)}.") from error
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
