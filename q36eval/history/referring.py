"""What the runs of a history refer to, read at once for all of them; and the room that deleted ones leave."""

import json
from collections.abc import Collection

from sqlalchemy import select, union

from q36eval.history import _tables as tables
from q36eval.history._database import used
from q36eval.history._texts import texts_of
from q36eval.history.store import History
from q36eval.records import DeploymentIdentity


def reviewed_runs(history: History) -> set[str]:
    """Runs that a person ever blessed or signed."""
    query = union(select(tables.blessings.c.run_id), select(tables.sign_offs.c.run_id))
    return {row.run_id for row in history._read(query)}


def files_of_runs(history: History, without: Collection[str] = ()) -> set[str]:
    """Content hashes of the files of all runs but those `without`."""
    columns = tables.artifacts.c
    left_out = set(without)
    return {row.sha256 for row in history._read(select(columns.run_id, columns.sha256)) if row.run_id not in left_out}


def references_of_runs(history: History) -> list[DeploymentIdentity]:
    """Every reference that some run was measured against."""
    column = tables.runs.c.reference_identity
    with history._reading() as connection:
        numbers = connection.execute(select(column).where(column.is_not(None)).distinct()).scalars().all()
        texts = texts_of(connection, numbers).values()
    return [DeploymentIdentity.model_validate(json.loads(text)) for text in texts]


def give_back_room(history: History) -> None:
    """Make an SQLite file as small as what is in it; a server does so by itself.

    Raises:
        StorageError: another process uses it, or there is no room for a copy; the file keeps its size.
    """
    if history._engine.dialect.name != "sqlite":
        return
    raw = history._engine.raw_connection()
    try:
        with used(history._engine.url):
            for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                history._engine.dialect.do_execute(raw.cursor(), statement, ())
    finally:
        raw.close()
