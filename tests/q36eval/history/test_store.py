"""How history keeps what is long, what it does with what it cannot read, and whole runs from elsewhere."""

import base64
import hashlib
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, UniqueConstraint, delete, func, inspect, select, text, update

from q36eval.errors import StorageError, UsageError
from q36eval.history import About, EventKind, History, RunFilter, RunProgress
from q36eval.history import _migration as migrating
from q36eval.history import _tables as tables
from q36eval.history._tables import metadata
from q36eval.history._texts import packed, unpacked
from q36eval.history.decisions import replayed
from q36eval.history.run_transfer import put_run, whole_run
from tests.app.history.filled import fill
from tests.q36eval.history.gates import begin, figure, gate, outcome
from tests.raising import raises


def texts(history: History) -> int:
    return int(history._read(select(func.count()).select_from(tables.texts))[0][0])


def test_what_was_asked_and_answered_alike_is_kept_once(history: History) -> None:
    first, second = begin(history, "main"), begin(history, "main")
    items = [outcome(number, "the same") for number in range(50)]
    history.add_items(first.id, items)
    once = texts(history)
    history.add_items(second.id, items)
    assert texts(history) == once
    assert history.items(first.id) == history.items(second.id) == items


@pytest.mark.parametrize("text", ["", "příliš\0 <script>", '{"cluster":"","stratum":"all"}', "x" * 1_000_000])
def test_texts_come_back_and_take_no_more_than_they_are(text: str) -> None:
    assert unpacked(packed(text)) == text
    assert len(packed(text)) <= len(text.encode()) + 1


def test_texts_written_once_are_read_for_ever() -> None:
    kept = "AXj5UkH1LENyhSnc0OKc1LJEBWMDBVU87gEACk0SYA=="
    assert unpacked(base64.b64decode(kept)) == '{"score":0.5,"text":"sleva 30 %","error":null,"detail":{}}'
    with raises(UsageError, "history-unreadable", "cannot read: upgrade"):
        unpacked(b"\x07new")
    with raises(UsageError, "history-damaged"):
        unpacked(b"\x01broken")


def test_a_figure_keeps_the_sign_of_a_zero_as_its_report_does(history: History) -> None:
    """SQLite writes -0.0 as 0: a replay would no longer be the same to the byte."""
    run = begin(history, "main")
    written = figure("x", 0.5).model_copy(update={"value": -0.0, "effect": -0.0})
    history.add_measurement(run.id, written)
    history.finish_run(run.id)
    (kept,) = history.measurements(run.id)
    assert kept.model_dump_json() == written.model_dump_json()
    (drawn,) = history.metric_series("main")
    assert str(drawn.effect) == "-0.0"


def test_what_no_database_stores_is_a_sentence(history: History) -> None:
    """An argument of a command line may hold such bytes, and a link of the review UI a NUL, which SQLite stores."""
    run = history.finish_run(begin(history, "main").id, gate(history, "other", 1))
    with raises(UsageError, "value-not-storable"):
        history.bless(run.id, "e\udcff", "why")
    for name in ("\udcff", *(() if history.name.endswith(".db") else ("a\0",))):
        with raises(UsageError, "value-not-storable"):
            history.get_run(name)
        with raises(UsageError, "value-not-storable"):
            history.summaries(RunFilter(branch=name))
    assert history.blessings("main") == []


def test_one_run_that_cannot_be_read_stops_no_list_and_a_lost_text_is_a_sentence(history: History) -> None:
    for branch in ("main", "fp8-head"):
        gate(history, branch, 1)
    broken = history.summaries(RunFilter(branch="main"))[0]
    with history._write() as connection:
        of_run = select(tables.runs.c.report).where(tables.runs.c.id == broken.id)
        other = connection.execute(
            select(tables.texts.c.id).where(tables.texts.c.id != of_run.scalar_subquery())
        ).first()
        connection.execute(update(tables.runs).where(tables.runs.c.id == broken.id).values(report=other.id))
    assert [summary.branch for summary in history.summaries()] == ["fp8-head", "main"]
    assert [branch.judged for branch in history.branches()] == history.summaries()
    assert len(history.metric_series("main")) == 2
    with raises(UsageError, "history-unreadable", broken.id):
        history.get_run(broken.id)
    run = begin(history, "main")
    history.add_items(run.id, [outcome(1, "gone")])
    with history._write() as connection:
        connection.execute(delete(tables.texts).where(tables.texts.c.id.in_(select(tables.items.c.answer))))
    with raises(UsageError, "history-damaged", "1, of"):
        history.items(run.id)


def test_a_deleted_run_takes_all_of_its_own_and_nothing_of_others(history: History) -> None:
    for branch in ("main", "fp8-head"):
        gate(history, branch, 2)
    other, gone = history.list_runs()
    before = (history.items(other.id), history.measurements(other.id), history.get_run(other.id))
    kept = texts(history)
    history.remove_unused_texts()
    assert texts(history) == kept
    history.delete_run(gone.id)
    history.remove_unused_texts()
    assert texts(history) == kept - 12
    assert (history.items(other.id), history.measurements(other.id), history.get_run(other.id)) == before
    assert (history.items(gone.id), history.events(gone.id)) == ([], [])
    history.give_back_room()


def test_a_server_s_refusal_is_one_sentence_without_the_password(postgresql: str) -> None:
    folder = postgresql.partition("host=")[2]
    for url, words in (
        (f"postgresql://eva:s3cret@/postgres?host={folder}", 'role "eva" does not exist'),
        (f"postgresql://q36:s3cret@/nowhere?host={folder}", "Q36EVAL_HISTORY"),
        (f"postgresql+psycopg://q36:s3cret@/x?host={folder}/none&password=s3cret", f"{folder}/none"),
    ):
        with raises(UsageError, "history-unusable", words) as refused:
            History.open(url)
        assert "s3cret" not in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_history_that_may_only_be_read_says_so(database: str, history: History) -> None:
    reading = History.open(f"{database}&options=-c%20default_transaction_read_only%3Don")
    assert reading.summaries() == []
    with raises(UsageError, "history-unusable"):
        reading.check_writable()
    with raises(StorageError, "history-unusable"):
        begin(reading, "main")
    reading.close()


@pytest.mark.long
def test_a_run_is_the_same_in_another_database(history: History, tmp_path: Path) -> None:
    source, run = fill(tmp_path / "source")
    whole = whole_run(source, run.id)
    broken = whole.model_copy(update={"run": run.model_copy(update={"branch": "a\0b"}), "measurements": ()})
    if not history.name.endswith(".db"):  # SQLite keeps such a name
        with raises(UsageError, "value-not-storable"):
            put_run(history, broken, imported=None)
        assert history.summaries() == []
    put_run(history, whole, imported=None)
    assert whole_run(history, run.id) == whole
    assert all(getattr(whole.about, name) for name in About.model_fields), "of each kind of note there is one"
    with raises(UsageError, "run-exists"):
        put_run(history, whole, imported=None)
    # what people decided stays where they decided it
    assert (history.sign_offs(run.id), history.blessings_of_run(run.id), history.waiver_records()) == ([], [], [])
    assert (source.reviewed_runs(), history.reviewed_runs()) == ({run.id}, set())
    history.bless(run.id, "eva", "here too")
    assert history.reviewed_runs() == {run.id}


def test_progress_is_what_was_said_last_and_events_keep_their_order(history: History) -> None:
    run, other = begin(history, "main"), begin(history, "main")
    for done in (1, 7):
        said = RunProgress(run_id=run.id, stage="KL", done=done, total=9, at=datetime(2026, 5, done, tzinfo=UTC))
        history.set_progress(said)
    assert (history.progress(run.id), history.progress(other.id)) == (said, None)
    then = datetime(2020, 1, 1, tzinfo=UTC)
    history.add_event(run.id, EventKind.BEGUN, "by hand")
    history.add_event(run.id, "retry", "timeout", at=then)
    history.add_event(other.id, "finished", "")
    assert [(e.kind, e.message) for e in history.events(run.id)] == [("begun", "by hand"), ("retry", "timeout")]
    assert history.events(run.id)[1].at == then
    with pytest.raises(ValueError, match="exploded"):
        history.add_event(run.id, "exploded", "")


# -- migrations of the schema


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
