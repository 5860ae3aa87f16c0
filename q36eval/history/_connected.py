"""A database that is open: how it is read and written."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, Row

from q36eval.history._database import WRITE, open_engine


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

    def _write(self) -> AbstractContextManager[Connection]:
        return self._engine.execution_options(**WRITE).begin()

    def _read(self, query: Any) -> Sequence[Row[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(query).all()
