"""Brings a database to the newest schema: forward only, in one transaction, an SQLite file's copy first.

A change of the schema edits `_tables.py`, raises `HEAD` and `PREVIOUS`, and replaces the step in `_upgrade`. Until a
version of q36eval is tagged only the previous schema is upgraded.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, func, insert, inspect, select, update

from q36eval.errors import StorageError, UsageError
from q36eval.history._tables import archivings, metadata, schema

PREVIOUS, HEAD = "0013", "0014"
"""The schema that can be upgraded, and the newest one; a test records the tables of HEAD."""

MIGRATING = 0x71336D67
"""Advisory lock of PostgreSQL: one process migrates, the others wait."""


def migrate(engine: Engine, name: str, write: dict[str, Any]) -> None:
    """Migrate the database to HEAD; `name` is its displayed name, `write` the options of a writing connection.

    Raises:
        UsageError: it is not ours, or has a schema that cannot be upgraded.
        StorageError: there is no room for its copy.
    """
    if version_of(engine) == HEAD:
        return
    with engine.connect().execution_options(**write) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(MIGRATING)))
        version = _version(connection)  # again, under the lock: another process may have migrated meanwhile
        if version is None:
            if inspect(connection).get_table_names():
                raise UsageError(
                    "history-not-ours", f"{name} is a database of something else: name another for the history."
                )
            metadata.create_all(connection)
            connection.execute(insert(schema).values(version_num=HEAD))
        elif version != HEAD:
            _refuse_unknown(name, version)
            if connection.dialect.name == "sqlite":
                _keep_copy(name)
            _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    """From 0013: a run stores its remaining work, and a branch can be archived."""
    archivings.create(connection)
    connection.exec_driver_sql("ALTER TABLE run_progress ADD COLUMN remaining TEXT NOT NULL DEFAULT ''")
    connection.execute(update(schema).values(version_num=HEAD))


def refuse_other(engine: Engine, name: str) -> None:
    """Refuse a database that would have to be changed first.

    Raises:
        UsageError: it is not of schema HEAD.
    """
    version = version_of(engine)
    if version is None:
        raise UsageError("history-missing", f"{name} holds no history, and this command may not create one.")
    if version == HEAD:
        return
    _refuse_unknown(name, version)
    raise UsageError(
        "history-schema-old",
        f"History database {name} has schema {version}, this q36eval reads {HEAD}, and this command may not "
        "upgrade it: run one first that may, such as `q36eval history list`.",
    )


def version_of(engine: Engine) -> str | None:
    """The schema of a database; None of one that is not ours, or empty."""
    with engine.connect() as connection:
        return _version(connection)


def _version(connection: Connection) -> str | None:
    return connection.execute(select(schema)).scalar() if inspect(connection).has_table(schema.name) else None


def _refuse_unknown(name: str, version: str) -> None:
    """Refuse a schema version without an upgrade to HEAD."""
    if version == PREVIOUS:
        return
    if version > HEAD:
        raise UsageError(
            "history-schema-new",
            f"History database {name} was written by a newer q36eval (schema {version}, this one knows up to {HEAD}): "
            "upgrade q36eval or name another.",
        )
    raise UsageError(
        "history-schema-old",
        f"History database {name} was written by a pre-release q36eval (schema {version}), which this one (schema "
        f"{HEAD}) cannot read: start a new history by moving that database away or by naming another with "
        "Q36EVAL_HISTORY; it is kept unchanged.",
    )


def _keep_copy(file: str) -> None:
    """Copy the unchanged database next to it; a copy from an earlier attempt is replaced."""
    copy = Path(f"{file}.before-{HEAD}")
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            "history-not-upgraded",
            f"The history database {file} cannot be upgraded to schema {HEAD}: its copy {copy} cannot be written "
            f"({error}). Make room; nothing was changed.",
        ) from error
    print(
        f"Upgrading history {file} to schema {HEAD}; a copy of it as it was is in {copy}.", file=sys.stderr, flush=True
    )
