"""The data that must survive a kill: an SQLite file per deployment; every change is a durable transaction.

State, budget, finished rounds not yet in history, undelivered messages: a round's end changes all of them at once, or
none. Any thread may use it.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from q36eval.errors import StorageError
from q36eval.interrupts import uninterrupted

TABLES = """
CREATE TABLE IF NOT EXISTS kept (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counts (name TEXT, label TEXT, value REAL NOT NULL, PRIMARY KEY (name, label));
CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY, requests INTEGER NOT NULL, tokens INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS spool (run TEXT PRIMARY KEY, position INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
  delivery TEXT, target TEXT, kind TEXT NOT NULL, body TEXT NOT NULL, made REAL NOT NULL, attempts INTEGER NOT NULL,
  due REAL NOT NULL, PRIMARY KEY (delivery, target)
);
"""
FILE = "watch.sqlite"
ROOM_BYTES = 512 * 1024
"""More than a round adds to the file."""


class Spent(NamedTuple):
    """Of a day's budget."""

    requests: int
    tokens: int


class Delivery(NamedTuple):
    """One event for one receiver. `target` is a hash of its address, which may be a secret."""

    delivery: str
    target: str
    kind: str
    body: str
    made: float
    attempts: int
    due: float


class Store:
    """The file in a deployment's folder. A disk error is a `StorageError`, and then nothing was written."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / FILE
        self._lock = threading.RLock()
        with self._storing():
            folder.mkdir(parents=True, exist_ok=True)
            self._sqlite = sqlite3.connect(self.file, timeout=30.0, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL"):
                self._sqlite.execute(f"PRAGMA {pragma}")
            self._sqlite.executescript(TABLES)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._sqlite.close()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                "watch-state-unusable", f"The watch's state {self.file} cannot be used: {error}."
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes in the block are applied, or none; a signal waits for its end."""
        with uninterrupted(), self._storing(), self._lock:
            self._sqlite.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._sqlite.execute("COMMIT")
            except BaseException:
                if self._sqlite.in_transaction:
                    self._sqlite.execute("ROLLBACK")
                raise

    def check_writable(self) -> None:
        """Write as much as a round will, to detect an unwritable disk before any query.

        The written data is removed again; its space in the file stays, for the next round.
        """
        with self.transaction():
            self.keep("checked", "x" * ROOM_BYTES)
        with self.transaction():
            self.forget("checked")

    # -- single values

    def kept(self, name: str) -> str | None:
        """A value; None if it does not exist."""
        rows = self._rows("SELECT value FROM kept WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def keep(self, name: str, value: str) -> None:
        """Store a value."""
        self._rows("INSERT OR REPLACE INTO kept VALUES (?, ?)", name, value)

    def forget(self, name: str) -> None:
        """Delete it."""
        self._rows("DELETE FROM kept WHERE name = ?", name)

    def forget_all(self, prefix: str) -> None:
        """Delete all values whose names begin with `prefix`."""
        self._rows("DELETE FROM kept WHERE substr(name, 1, length(?)) = ?", prefix, prefix)

    # -- counters, which never fall

    def count(self, name: str, label: str = "", by: float = 1.0) -> None:
        """Raise a counter."""
        self._rows("INSERT OR IGNORE INTO counts VALUES (?, ?, 0)", name, label)
        self._rows("UPDATE counts SET value = value + ? WHERE name = ? AND label = ?", by, name, label)

    def counts(self) -> dict[tuple[str, str], float]:
        """All counters, by name and label."""
        return {(name, label): value for name, label, value in self._rows("SELECT name, label, value FROM counts")}

    # -- the budget's days

    def spent(self, day: str) -> Spent:
        """What was spent of a day's budget."""
        rows = self._rows("SELECT requests, tokens FROM days WHERE day = ?", day)
        return Spent(*rows[0]) if rows else Spent(0, 0)

    def spend(self, day: str, requests: int, tokens: int) -> None:
        """Add to it; reserved but unused tokens are refunded as a negative number."""
        self._rows("INSERT OR IGNORE INTO days VALUES (?, 0, 0)", day)
        statement = "UPDATE days SET requests = requests + ?, tokens = MAX(0, tokens + ?) WHERE day = ?"
        self._rows(statement, requests, tokens, day)

    # -- finished rounds

    def spool(self, run: str, body: str) -> None:
        """Store a finished round until history holds it."""
        self._rows("INSERT OR IGNORE INTO spool SELECT ?, COALESCE(MAX(position), 0) + 1, ? FROM spool", run, body)

    def spooled(self) -> int:
        """The number of waiting rounds."""
        return int(self._rows("SELECT COUNT(*) FROM spool")[0][0])

    def next_spooled(self) -> tuple[str, str] | None:
        """The oldest waiting round: run id and body."""
        rows = self._rows("SELECT run, body FROM spool ORDER BY position LIMIT 1")
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def unspool(self, run: str) -> None:
        """Remove a round that history holds."""
        self._rows("DELETE FROM spool WHERE run = ?", run)

    # -- deliveries

    def post(self, delivery: Delivery) -> None:
        """Store a delivery until its receiver has accepted it."""
        self._rows("INSERT OR IGNORE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?)", *delivery)

    def due(self, now: float) -> list[Delivery]:
        """Deliveries that may be tried, the oldest first."""
        rows = self._rows("SELECT * FROM outbox WHERE due <= ? ORDER BY made, delivery", now)
        return [Delivery(*row) for row in rows]

    def pending(self) -> int:
        """The number of deliveries not accepted yet."""
        return int(self._rows("SELECT COUNT(*) FROM outbox")[0][0])

    def delivered(self, one: Delivery) -> None:
        """Remove a delivery that was accepted or given up."""
        self._rows("DELETE FROM outbox WHERE delivery = ? AND target = ?", one.delivery, one.target)

    def postpone(self, one: Delivery, due: float) -> None:
        """Schedule another attempt for a delivery that was not accepted."""
        statement = "UPDATE outbox SET attempts = attempts + 1, due = ? WHERE delivery = ? AND target = ?"
        self._rows(statement, due, one.delivery, one.target)

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._storing(), self._lock:
            return self._sqlite.execute(statement, values).fetchall()
