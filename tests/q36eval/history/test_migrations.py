"""Histories of an older schema are brought to the newest with all they hold, or left as they are, on both databases.

`schemas` holds databases that an older version wrote; a schema after the newest is added by `next_version`.
"""

import hashlib
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import UniqueConstraint, text

from q36eval.errors import StorageError, UsageError
from q36eval.gate import SignOff
from q36eval.history import Blessing, History, WaiverRecord, WholeRun
from q36eval.history import _migration as migrating
from q36eval.history._tables import metadata
from q36eval.history.decisions import replayed
from q36eval.history.run_transfer import put_run, whole_run
from q36eval.locks import exclusive
from tests.app.history.filled import WAIVER, fill
from tests.q36eval.history.gates import child, gate
from tests.q36eval.history.next_version import NEXT, add_next_version
from tests.raising import raises

NEWEST = migrating.HEAD

SCHEMAS = Path(__file__).parent / "schemas"

Content = tuple[list[WholeRun], list[WaiverRecord], list[SignOff], list[Blessing]]


@pytest.fixture
def old(database: str, tmp_path: Path) -> str:
    """A history of the first schema: runs with all that one can hold, a run without a verdict, a waiver."""
    source, run = fill(tmp_path / "source")
    history = History.open(database)
    put_run(history, whole_run(source, run.id), imported=None)
    history.add_waiver("sandbox", "main", WAIVER)
    history.bless(run.id, "eva", "release 1")
    history.add_sign_off(run.id, source.sign_offs(run.id)[0])
    gate(history, "fp8-head", 2)
    history.start_run(family="sandbox", branch="main", identity=None, reference_identity=None)
    history.close()
    return database


sqlite_only = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


def content(history: History) -> Content:
    ids = [run.id for run in history.summaries()]
    signed = [one for run_id in ids for one in history.sign_offs(run_id)]
    blessed = [one for run_id in ids for one in history.blessings_of_run(run_id)]
    return [whole_run(history, run_id) for run_id in ids], history.waiver_records(), signed, blessed


def read(database: str) -> tuple[Content, str | None]:
    """All that a history of the newest schema holds, and that schema."""
    history = History.open(database, upgrade=False)
    try:
        return content(history), migrating.version_of(history._engine)
    finally:
        history.close()


def dump(file: str | Path) -> list[str]:
    with closing(sqlite3.connect(file)) as raw:
        return list(raw.iterdump())


def set_version(database: str, version: str) -> None:
    history = History.open(database)
    with history._engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    history.close()


def test_the_first_schema_makes_the_tables(history: History) -> None:
    with history._engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == migrating.HEAD
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert ScriptDirectory(str(migrating.MIGRATIONS)).get_current_head() == migrating.HEAD


def restore(dump: Path, database: str) -> None:
    """An empty database filled from an SQL dump, as the version that is in the dump's name wrote it."""
    script = dump.read_text(encoding="utf-8")
    if "://" not in database:
        with closing(sqlite3.connect(database)) as raw:
            raw.executescript(script)
        return
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        connection.execute(script)  # type: ignore[arg-type]  # psycopg types literal queries alone


def test_a_history_of_0010_loses_its_chain_and_no_decision_that_was_in_force(database: str) -> None:
    """Of the imported run's decisions one blessing had been accepted; nothing else of them counted."""
    kind = "postgresql" if "://" in database else "sqlite"
    restore(SCHEMAS / f"0010-{kind}.sql", database)
    script = (SCHEMAS / f"0010-{kind}.sql").read_text(encoding="utf-8")
    history = History.open(database)
    assert history.id in script, "files in the working state are noted under this id"
    with history._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").first() is None
    runs, waivers, signed, blessed = content(history)
    assert [(one.branch, one.state.value, one.verdict) for one in (each.run for each in runs)] == [
        ("main", "finished", "PASS"),
        ("main", "finished", "PASS"),
        ("main", "running", None),
        ("fp8-head", "finished", "PASS"),
        ("main", "finished", "PASS"),
    ]
    newest, imported, *_, first = (history.get_run(each.run.id) for each in runs)
    assert [one.imported is not None for one in (newest, imported, first)] == [False, True, False]
    assert [replayed(history, one) == one.report for one in (imported, first)] == [True, True]
    assert [(one.number, one.waiver.owner, one.revoked) for one in waivers] == [(1, "eva", None)]
    assert [(one.owner, one in (first.report.signed_by if first.report else ())) for one in signed] == [("jan", False)]
    assert {(one.run_id, one.owner) for one in blessed} == {(first.id, "eva"), (imported.id, "zoe")}
    assert [one.owner for one in history.blessings("main")] == ["zoe", "eva"], "the one accepted last counts"
    history.revoke_blessing(imported.id, "eva", "it was not ours")
    gate(history, "main", 1)
    history.delete_run(first.id)
    history.close()
    assert read(database)[1] == NEWEST


def test_folders_of_one_name_become_two_branches_where_their_paths_are_known(database: str, tmp_path: Path) -> None:
    history = History.open(database)

    def begun(branch: str, **provenance: str) -> str:
        known = {"family": "sandbox", "branch": branch, "provenance": provenance}
        return history.start_run(identity=None, reference_identity=None, **known).id

    ids = {
        begun("release", named="/srv/a/release"): "/srv/a/release",
        begun("release", named="/srv/b/release/"): "/srv/b/release",
        begun("release", named="./release"): "release",
        begun("alone", named=f"{tmp_path}/alone"): f"{tmp_path}/alone",
        begun("newest", named="/srv/link"): "newest",
        begun("main"): "main",
        begun("/srv/main", named="/srv/main"): "/srv/main",
    }
    for branch in ("release", "alone", "main"):
        history.add_waiver("sandbox", branch, WAIVER)
    history.close()
    set_version(database, "0011")
    history = History.open(database)
    assert {run.id: run.branch for run in history.summaries()} == ids
    assert [record.branch for record in history.waiver_records()] == ["release", f"{tmp_path}/alone", "main"]
    history.close()


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
    assert (NEWEST, fingerprint) == ("0012", "cb9d73af1b15962b"), (
        "add a file to migrations/versions and raise HEAD, then record both here"
    )


@pytest.mark.long
def test_all_that_was_written_is_there(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = read(old)
    assert [len(part) for part in before] == [3, 1, 1, 1]
    add_next_version(monkeypatch, tmp_path)
    history = History.open(old)
    assert content(history) == before
    places = history._read(text("SELECT place FROM runs ORDER BY place"))
    assert [row.place for row in places] == ["sandbox/fp8-head", "sandbox/main", "sandbox/main"]
    assert {row.weight for row in history._read(text("SELECT weight FROM measurements"))} == {1.0}
    with history._engine.connect() as connection:
        added = compare_metadata(MigrationContext.configure(connection), metadata)
        assert [(entry[0], entry[3].name) for entry in added] == [
            ("remove_column", "weight"),
            ("remove_column", "place"),
        ]
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    gate(history, "main", 1)
    history.delete_run(before[0][0].run.id)
    assert len(history.summaries()) == 3
    history.close()
    assert read(old)[1] == NEXT


def test_a_new_history_goes_through_every_version(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_next_version(monkeypatch, tmp_path)
    history = History.open(database)
    gate(history, "main", 1)
    assert migrating.version_of(history._engine) == NEXT
    history.close()


@pytest.mark.long
def test_a_migration_that_fails_leaves_all_as_it_was(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies after the last table was filled, before its transaction ends."""
    before, upgrade = read(old), command.upgrade

    def dies(config: Any, revision: str) -> None:
        upgrade(config, revision)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        add_next_version(patch, tmp_path)
        patch.setattr(command, "upgrade", dies)
        with pytest.raises(RuntimeError, match="killed"):
            History.open(old)
    assert read(old) == before
    add_next_version(monkeypatch, tmp_path / "again")
    History.open(old).close()
    assert read(old) == (before[0], NEXT)
    if "://" not in old:
        assert [path.name for path in Path(old).parent.glob("*.before-*")] == [f"history.db.before-{NEXT}"]


@pytest.mark.long
def test_processes_that_migrate_together_do_it_once(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = read(old)
    add_next_version(monkeypatch, tmp_path)
    with ExitStack() as stack:
        started = [stack.enter_context(child(lambda _: History.open(old).close())) for _ in range(4)]
        assert [os.waitpid(process, 0)[1] for process, _ in started] == [0] * 4
    assert read(old) == (before, NEXT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("9998", "history-schema-new"),
        ("0009", "history-schema-old"),
        ("0001", "history-schema-old"),
    ],
)
def test_another_schema_is_refused_with_a_sentence_and_left_as_it_is(old: str, version: str, code: str) -> None:
    before, _ = read(old)
    set_version(old, version)
    file = None if "://" in old else dump(old)
    for upgrade in (True, False):
        with raises(UsageError, code, version, NEWEST) as refused:
            History.open(old, upgrade=upgrade)
        assert "\n" not in str(refused.value)
    if file is not None:
        assert dump(old) == file
        assert list(Path(old).parent.glob("*.before-*")) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrating, "HEAD", version)
        assert read(old) == (before, version)


@pytest.mark.long
@sqlite_only
def test_a_row_that_refers_to_one_that_is_gone_stops_the_migration(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(old)) as raw, raw:
        raw.execute("DELETE FROM readings")
    before = dump(old)
    add_next_version(monkeypatch, tmp_path)
    with raises(UsageError, "history-damaged", "measurements", "readings"):
        History.open(old)
    assert dump(old) == before


@pytest.fixture
def older_file(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An SQLite file of the schema before the newest."""
    add_next_version(monkeypatch, tmp_path)
    return Path(old)


@pytest.mark.long
@sqlite_only
def test_the_file_is_kept_as_it_was_and_that_is_said_once(older_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dump(older_file)
    for _ in range(2):
        History.open(older_file).close()
    copy = older_file.with_name(f"history.db.before-{NEXT}")
    assert dump(copy) == before
    assert capsys.readouterr().err.count(str(copy)) == 1


@pytest.mark.long
@sqlite_only
def test_a_database_that_was_put_back_and_written_to_is_kept_beside_its_first_copy(older_file: Path) -> None:
    copy = older_file.with_name(f"history.db.before-{NEXT}")
    History.open(older_file).close()
    first = dump(copy)
    for suffix in ("", "-wal", "-shm"):
        older_file.with_name(older_file.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, older_file)
    with closing(sqlite3.connect(older_file)) as raw, raw:
        raw.execute("UPDATE runs SET branch = 'later'")
    put_back = dump(older_file)
    History.open(older_file).close()
    assert dump(copy) == first
    assert dump(older_file.with_name(f"{copy.name}.2")) == put_back


@pytest.mark.long
@sqlite_only
def test_a_history_that_an_older_program_measures_into_is_left_to_it(older_file: Path) -> None:
    before = dump(older_file)
    with (
        exclusive(older_file.parent / "runs" / "20260101-000000-abcdef.lock"),
        raises(UsageError, "history-busy", "20260101-000000-abcdef"),
    ):
        History.open(older_file)
    assert dump(older_file) == before
    History.open(older_file).close()


@pytest.mark.long
@sqlite_only
def test_without_room_for_the_copy_nothing_is_changed(older_file: Path) -> None:
    before = dump(older_file)
    older_file.with_name(f"history.db.before-{NEXT}.part").mkdir()
    with raises(StorageError, "history-not-upgraded"):
        History.open(older_file)
    assert dump(older_file) == before


@pytest.mark.long
def test_what_may_only_be_read_is_refused_where_it_would_be_changed(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(old)
    with monkeypatch.context() as patch:
        add_next_version(patch, tmp_path)
        with raises(UsageError, "history-schema-old", NEWEST, NEXT):
            History.open(old, upgrade=False)
    assert read(old) == before
    history = History.open(old, upgrade=False)
    with raises(StorageError, "history-unusable"):
        history.delete_run(before[0][0][0].run.id)
    history.close()
    missing = tmp_path / "folder" / "none.sqlite"
    with raises(UsageError, "history-missing"):
        History.open(missing, upgrade=False)
    assert not missing.parent.exists()
