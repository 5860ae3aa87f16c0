"""Brings a database to the newest schema: forward only, in one transaction, an SQLite file's copy first.

A change of the schema edits `_tables.py`, raises `HEAD` and `PREVIOUS`, and replaces the step in `_upgrade`. Until a
version of q36eval is tagged only the previous schema is upgraded.
"""

import json
import sqlite3
import sys
from collections import defaultdict
from contextlib import closing
from pathlib import Path, PurePath
from typing import Any

from sqlalchemy import Connection, Engine, func, insert, inspect, select, update

from q36eval.errors import StorageError, UsageError
from q36eval.files import absolute_path
from q36eval.history._tables import metadata, runs, schema, waivers

PREVIOUS, HEAD = "0011", "0013"
"""The schema that can be upgraded, and the newest one; a test records the tables of HEAD."""

MIGRATING = 0x71336D67
"""Advisory lock of PostgreSQL: one process migrates, the others wait."""


def migrate(engine: Engine, name: str, write: dict[str, Any]) -> None:
    """Bring the database to HEAD; `name` is how it is called to a person, `write` the options of a writing connection.

    Raises:
        UsageError: it is not ours, or of a schema that cannot be upgraded.
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
    """From 0011: a folder's branch goes by its absolute path, a run's files are in a folder of its own, its criteria in
    its report, and drift is not kept."""
    _name_folders_by_paths(connection)
    for table in ("history", "artifacts", "criteria_results", "kept_drifts"):
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    connection.execute(update(schema).values(version_num=HEAD))


def _name_folders_by_paths(connection: Connection) -> None:
    """Rename the runs whose provenance has the path; the others stay under the old name, which no new run has.

    A waiver goes with the runs of its branch where they are all of one folder. Else it stays behind and excuses no run
    of either folder.
    """
    from q36eval.history._texts import texts_of  # which imports what imports this module

    rows = connection.execute(select(runs.c.number, runs.c.family, runs.c.branch, runs.c.provenance)).all()
    texts = texts_of(connection, {row.provenance for row in rows})
    paths: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        named = json.loads(texts.get(row.provenance, "{}")).get("named", "")
        known = named.startswith("/") and PurePath(named).name == row.branch
        path = str(absolute_path(named)) if known else row.branch
        paths[row.family, row.branch].add(path)
        connection.execute(update(runs).where(runs.c.number == row.number).values(branch=path))
    for (family, branch), of_runs in paths.items():
        if len(of_runs) == 1:
            of_branch = waivers.c.family == family, waivers.c.branch == branch
            connection.execute(update(waivers).where(*of_branch).values(branch=of_runs.pop()))


def refuse_other(engine: Engine, name: str) -> None:
    """Refuse a database that would first have to be changed.

    Raises:
        UsageError: it is not of HEAD.
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
    """Refuse a schema version for which there is no way to HEAD."""
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
    """The database as it is, beside it; a copy from an earlier attempt is replaced."""
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
