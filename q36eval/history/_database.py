"""The database, an SQLite file or PostgreSQL: reading and writing (for opening see `_connection`)."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row, Table, UniqueConstraint
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError

from q36eval.errors import StorageError, UsageError
from q36eval.history._connection import WRITE, check_file, open_engine, sentence_of, shown
from q36eval.interrupts import uninterrupted

Upserting = Callable[[Table], "sqlite.Insert | postgresql.Insert"]


class Connected:
    """Base of the history: every write is committed at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path_or_url: Path | str, *, upgrade: bool = True) -> Self:
        """Open (or create) an SQLite file, or a PostgreSQL database, and migrate it to the newest schema.

        `path_or_url` is a file, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. Without `upgrade` one of another
        schema is refused and stays unchanged.

        Raises:
            UsageError: not our database, one written by a newer version, one that cannot be reached, or one that would
                have to be changed first.
        """
        return cls(open_engine(path_or_url, upgrade=upgrade))

    @property
    def name(self) -> str:
        """The file or the URL for display: without a password."""
        return shown(self._engine.url)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def check_writable(self) -> None:
        """Detect an unwritable database now, not after hours of measuring.

        Raises:
            UsageError: the database is read-only, or its disk is full.
        """
        try:
            with self._write() as connection:  # a lock alone is granted on a read-only file, too
                connection.exec_driver_sql("UPDATE alembic_version SET version_num = version_num")
        except StorageError as error:
            raise UsageError(error.code, str(error)) from error

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        check_file(self._engine)
        with (
            uninterrupted(),
            used(self._engine.url),
            self._engine.execution_options(**WRITE).begin() as connection,
        ):
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
        """Turns errors of incomplete rows read in the block into a usage error.

        Raises:
            UsageError: a row has no valid JSON where required.
        """
        try:
            yield
        except JSONDecodeError as error:
            raise UsageError(
                "history-damaged", f"The history database {self.name} holds a row that is no JSON: {error}."
            ) from error

    def give_back_room(self) -> None:
        """Shrink an SQLite file to its content; a server does so automatically.

        Raises:
            StorageError: another process uses it, or the disk has no space for a copy; the file keeps its size.
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
    """The INSERT of this database that supports ON CONFLICT."""
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
        raise UsageError(
            "value-not-storable", f"{error.object!a} is not valid UTF-8, so history cannot store it."
        ) from error
    except DatabaseError as error:
        if "cannot contain NUL" in str(error.orig):
            raise UsageError(
                "value-not-storable", "A name holds a NUL character, which PostgreSQL cannot store."
            ) from error
        # a missing privilege or table comes from PostgreSQL as an error of programming
        denied = getattr(error.orig, "sqlstate", None) in ("42501", "42P01")
        if not denied and type(error) not in (OperationalError, InternalError, DatabaseError):
            raise
        raise StorageError(
            "history-unusable", f"The history database {shown(url)} cannot be used: {sentence_of(error)}."
        ) from error
