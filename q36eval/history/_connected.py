"""A database that is open: how it is read and written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row

from q36eval.errors import StorageError, UsageError
from q36eval.history._database import WRITE, open_engine, used


class Connected:
    """Base of the history: every write is committed at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path_or_url: Path | str) -> Self:
        """Open (or make) an SQLite file and bring it to the newest schema.

        Raises:
            UsageError: not a database of ours, or one written by a newer version.
        """
        return cls(open_engine(path_or_url))

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
        with used(self._engine.url.database), self._engine.execution_options(**WRITE).begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with used(self._engine.url.database), self._engine.connect() as connection:
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
            database = self._engine.url.database
            raise UsageError(f"The history database {database} holds a row that is no JSON: {error}.") from error
