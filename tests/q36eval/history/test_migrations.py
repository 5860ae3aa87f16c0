"""A history of the previous schema is brought to the newest with all it holds, or left as it is, on both databases.

`schemas` holds databases that the previous version wrote.
"""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, UniqueConstraint, inspect, text

from q36eval.errors import StorageError, UsageError
from q36eval.history import History
from q36eval.history import _migration as migrating
from q36eval.history._tables import metadata
from q36eval.history.decisions import replayed
from tests.q36eval.history.gates import gate
from tests.raising import raises

HEAD, PREVIOUS = migrating.HEAD, migrating.PREVIOUS


@pytest.fixture
def old(database: str) -> str:
    """A history of the previous schema: runs with all that one can hold, a run without a verdict, a waiver."""
    kind = "postgresql" if "://" in database else "sqlite"
    script = (Path(__file__).parent / "schemas" / f"{PREVIOUS}-{kind}.sql").read_text(encoding="utf-8")
    if kind == "sqlite":
        with closing(sqlite3.connect(database)) as raw:
            raw.executescript(script)
        return database
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.execute(script)  # type: ignore[arg-type]  # psycopg types literal queries alone
    return database


def state_of(database: str) -> tuple[str, list[str]]:
    """Schema and tables."""
    from sqlalchemy import create_engine

    url = database.replace("postgresql://", "postgresql+psycopg://") if "://" in database else f"sqlite:///{database}"
    engine = create_engine(url)
    with engine.connect() as connection:
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        tables = sorted(inspect(connection).get_table_names())
    engine.dispose()
    return version, tables


def dump(file: str | Path) -> list[str]:
    with closing(sqlite3.connect(file)) as raw:
        return list(raw.iterdump())


def test_all_that_was_written_is_there(old: str) -> None:
    history = History.open(old)
    assert state_of(old) == (HEAD, sorted(metadata.tables))
    with history._engine.connect() as connection:
        for table in metadata.sorted_tables:
            found = {column["name"] for column in inspect(connection).get_columns(table.name)}
            assert found == {column.name for column in table.columns}
    runs = history.list_runs()
    assert [(one.branch, one.state.value, one.verdict) for one in runs] == [
        ("main", "running", None),
        ("fp8-head", "finished", "PASS"),
        ("main", "finished", "PASS"),
    ]
    first = runs[-1]
    assert replayed(history, first) == first.report
    assert [item.item_key for item in history.items(first.id)] == ["a", "b", "c"]
    assert len(history.earlier_decisions(first.id)) == 1
    assert [one.waiver.owner for one in history.waiver_records()] == ["eva"]
    assert [one.owner for one in history.sign_offs(first.id)] == ["jan"]
    assert [one.run_id for one in history.blessings("main")] == [first.id]
    gate(history, "main", 1)
    history.delete_run(first.id)
    assert len(history.summaries()) == 3
    history.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_the_file_is_kept_as_it_was_and_that_is_said_once(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    before, copy = dump(old), Path(f"{old}.before-{HEAD}")
    copy.mkdir()  # without room for the copy nothing is changed
    with raises(StorageError, "history-not-upgraded"):
        History.open(old)
    assert dump(old) == before
    copy.rmdir()
    capsys.readouterr()
    for _ in range(2):
        History.open(old).close()
    assert dump(copy) == before
    assert capsys.readouterr().err.count(str(copy)) == 1


def test_a_migration_that_fails_leaves_all_as_it_was(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, upgrade = state_of(old), migrating._upgrade

    def dies(connection: Connection) -> None:
        upgrade(connection)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(migrating, "_upgrade", dies)
        with pytest.raises(RuntimeError, match="killed"):
            History.open(old)
    assert state_of(old) == before
    History.open(old).close()
    assert state_of(old)[0] == HEAD


@pytest.mark.parametrize(("version", "code"), [("9998", "history-schema-new"), ("0011", "history-schema-old")])
def test_another_schema_is_refused_with_a_sentence_and_left_as_it_is(database: str, version: str, code: str) -> None:
    history = History.open(database)
    with history._engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    history.close()
    before = state_of(database)
    for upgrade in (True, False):
        with raises(UsageError, code, version, HEAD) as refused:
            History.open(database, upgrade=upgrade)
        assert "\n" not in str(refused.value)
    assert state_of(database) == before
    assert list(Path(database).parent.glob("*.before-*")) == []


def test_what_may_only_be_read_is_refused_where_it_would_be_changed(old: str, tmp_path: Path) -> None:
    before = state_of(old)
    with raises(UsageError, "history-schema-old", PREVIOUS, HEAD):
        History.open(old, upgrade=False)
    assert state_of(old) == before
    History.open(old).close()
    history = History.open(old, upgrade=False)
    with raises(StorageError, "history-unusable"):
        history.delete_run(history.list_runs()[0].id)
    history.close()
    missing = tmp_path / "folder" / "none.sqlite"
    with raises(UsageError, "history-missing"):
        History.open(missing, upgrade=False)
    assert not missing.parent.exists()


def test_who_edits_the_schema_raises_its_number() -> None:
    """Else a history of the schema before the edit would be taken for one of this."""
    described = [
        (
            table.name,
            [(column.name, repr(column.type), column.nullable, column.primary_key) for column in table.columns],
            sorted(str(key.column) for key in table.foreign_keys),
            sorted(
                [column.name for column in constraint.columns]
                for constraint in table.constraints
                if isinstance(constraint, UniqueConstraint)
            ),
            sorted((str(index.name), list(index.columns.keys())) for index in table.indexes),
        )
        for table in metadata.sorted_tables
    ]
    fingerprint = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
    assert (HEAD, fingerprint) == ("0014", "bd47cee72f7c7c45"), "write the step from the schema before, and raise HEAD"
