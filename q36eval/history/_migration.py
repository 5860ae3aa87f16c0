"""Brings a database to the newest schema: forward only, in one transaction, an SQLite file's copy first."""

import filecmp
import sqlite3
import sys
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, func, inspect, select, text

from q36eval.errors import StorageError, UsageError
from q36eval.locks import is_held

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0012"
"""The newest schema version; a test holds it to the files in `migrations/versions`."""

MIGRATIONS = Path(__file__).parent / "migrations"
"""The folder of Alembic's scripts."""

MIGRATING = 0x71336D67
"""Advisory lock of PostgreSQL: one process migrates, the others wait."""


def migrate(engine: Engine, name: str, write: dict[str, Any]) -> None:
    """Bring the database to HEAD; `name` is how it is called to a person, `write` the options of a writing connection.

    Raises:
        UsageError: it is not ours, or a newer version or one from before the first release wrote it.
        StorageError: there is no room for its copy.
    """
    if version_of(engine) == HEAD:
        return
    before = _upgrade(engine, name, write)
    if before is not None and engine.dialect.name == "sqlite":
        # what the old tables took; where this fails the room is used again all the same
        with suppress(sqlite3.Error), closing(sqlite3.connect(str(engine.url.database), isolation_level=None)) as raw:
            raw.execute("VACUUM")


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
    _refuse_unknown(name, version, _known(_config()))
    raise UsageError(
        "history-schema-old",
        f"History database {name} has schema {version}, this q36eval reads {HEAD}, and this command may not "
        "upgrade it: run one first that may, such as `q36eval history list`.",
    )


def version_of(engine: Engine) -> str | None:
    """The schema of a database; None of one that is not ours, or empty."""
    with engine.connect() as connection:
        return _version(connection)


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _known(config: "Config") -> set[str]:
    """The schema versions that this q36eval can bring to HEAD."""
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}


def _upgrade(engine: Engine, name: str, write: dict[str, Any]) -> str | None:
    """The version before; None of an empty database."""
    # imported only when there is something to migrate: it costs a quarter of a second
    from alembic import command

    config = _config()
    known = _known(config)
    with engine.connect().execution_options(**write) as connection:
        if connection.dialect.name == "sqlite":
            _without_foreign_keys(connection)
        with connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(MIGRATING)))
            # read again under the lock: another process may have migrated meanwhile
            version = _version(connection)
            if version is not None:
                _refuse_unknown(name, version, known)
            elif inspect(connection).get_table_names():
                raise UsageError(
                    "history-not-ours", f"{name} is a database of something else: name another for the history."
                )
            if version not in (None, HEAD) and connection.dialect.name == "sqlite":
                _check_idle(name)
                _keep_copy(name)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            if connection.dialect.name == "sqlite":
                _check_references(connection, name)
        return version


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _refuse_unknown(name: str, version: str, known: set[str]) -> None:
    """Refuse a schema version for which there is no way to HEAD."""
    if version in known:
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


def _without_foreign_keys(connection: Connection) -> None:
    """A table that others refer to can be made anew only then; it is a setting of the connection, outside transactions.

    The connection is not used again: the next one is made with them on.
    """
    raw = connection.connection.driver_connection
    assert raw is not None
    raw.execute("PRAGMA foreign_keys = OFF")
    connection.detach()


def _check_references(connection: Connection, name: str) -> None:
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise UsageError(
            "history-damaged",
            f"history database {name} is damaged: a row of {broken[0]} refers to one of {broken[2]} that is gone. It "
            "was left as it is.",
        )


def _check_idle(file: str) -> None:
    """An older program that is measuring could not write what it measures from now on.

    Its locks are looked for where those of the working state lie that this file is the history of.
    """
    busy = [lock.stem for lock in sorted((Path(file).parent / "runs").glob("*.lock")) if is_held(lock)]
    if busy:
        raise UsageError(
            "history-busy",
            f"Run {busy[0]} is being measured into history {file} by an older q36eval, which could not write to schema "
            f"{HEAD}. Nothing was changed; try again when the run has ended.",
        )


def _keep_copy(file: str) -> None:
    """The database as it is, beside it. A copy that is there stays: of the same content it is an earlier attempt's, of
    another it is of a database that was put back since, and written to by an older version.
    """
    copy = Path(f"{file}.before-{HEAD}")
    unfinished = Path(f"{copy}.part")
    try:
        unfinished.unlink(missing_ok=True)
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(unfinished)) as target:
            source.backup(target)
        others = (Path(f"{copy}.{number}") for number in count(2))
        while copy.exists() and not filecmp.cmp(copy, unfinished, shallow=False):
            copy = next(others)
        unfinished.replace(copy)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise StorageError(
            "history-not-upgraded",
            f"The history database {file} cannot be upgraded to schema {HEAD}: its copy {copy} cannot be written "
            f"({error}). Make room; nothing was changed.",
        ) from error
    print(
        f"Upgrading history {file} to schema {HEAD}; a copy of it as it was is in {copy}.", file=sys.stderr, flush=True
    )
