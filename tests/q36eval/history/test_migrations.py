"""Histories of every older schema, written by the programs of their time, are carried to today's with all they hold."""

import json
import shutil
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from q36eval.errors import StorageError, UsageError
from q36eval.gate import GateReport
from q36eval.history import History, RunState
from q36eval.history import _migrating as migrating
from q36eval.history._tables import metadata
from q36eval.locks import exclusive
from q36eval.records import ItemOutcome, Measurement

ASSETS = Path(__file__).parents[2] / "assets" / "histories" / "before_0004.tar.xz"
"""`0001.sqlite` to `0003.sqlite`: parts of real gate runs on the sandbox, and a run without a verdict, in each."""


@pytest.fixture(params=["0001", "0002", "0003"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database of that schema, made by `q36eval` of its time."""
    with tarfile.open(ASSETS) as archive:
        archive.extract(f"{request.param}.sqlite", tmp_path, filter="data")
    return (tmp_path / f"{request.param}.sqlite").rename(tmp_path / "history.sqlite")


def rows(file: Path, query: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(file)) as raw:
        raw.row_factory = sqlite3.Row
        return [dict(row) for row in raw.execute(query)]


def test_all_that_was_written_is_there(old: Path) -> None:
    runs, then = rows(old, "SELECT * FROM runs ORDER BY id DESC"), shutil.copy(old, old.with_suffix(".then"))
    history = History.open(old)
    assert [run.id for run in history.list_runs()] == [row["id"] for row in runs]
    for row in runs:
        check_run(history, row)
        measured = rows(Path(then), f"SELECT * FROM measurements WHERE run_id = '{row['id']}' ORDER BY id")
        assert same(history.measurements(row["id"]), [_measurement(each) for each in measured])
        asked = rows(Path(then), f"SELECT record FROM items WHERE run_id = '{row['id']}' ORDER BY id")
        assert history.items(row["id"]) == [ItemOutcome.model_validate_json(each["record"]) for each in asked]
    history.close()


def check_run(history: History, row: dict[str, Any]) -> None:
    run, summary = history.get_run(row["id"]), next(s for s in history.summaries() if s.id == row["id"])
    for name in ("policy", "suites", "provenance"):
        assert getattr(run, name) == (None if row[name] is None else json.loads(row[name])), name
    assert (run.state, summary.state, summary.verdict) == (RunState(row["state"]), run.state, run.verdict)
    if row["report"] is None:
        assert (run.report, summary.lanes, summary.exit_code, history.criteria(run.id)) == (None, {}, None, [])
        return
    report = GateReport.model_validate_json(row["report"])
    assert run.report == report
    assert summary.lanes == {lane.lane: lane.verdict for lane in report.lanes}
    assert (summary.exit_code, summary.waived) == (report.exit_code, bool(report.waived))
    assert run.identity is not None
    assert summary.checkpoint_sha256 == run.identity.checkpoint_sha256
    assert {each["criterion"]: each["verdict"] for each in history.criteria(run.id)} == {
        criterion.id: criterion.verdict for criterion in report.criteria
    }


def _measurement(row: dict[str, Any]) -> Measurement:
    found = json.loads(row["record"])
    return Measurement.model_validate({**found, "clusters": row["clusters"] and json.loads(row["clusters"])})


def same(one: list[Measurement], other: list[Measurement]) -> bool:
    """Equal, NaN being equal to itself."""
    return [each.model_dump_json() for each in one] == [each.model_dump_json() for each in other]


def test_what_reviewers_wrote_is_carried_over(old: Path) -> None:
    version = rows(old, "SELECT version_num FROM alembic_version")[0]["version_num"]
    history = History.open(old)
    run = next(run for run in history.list_runs() if run.report is not None)
    (blessing,), (waiver,) = history.blessings(run.branch), history.waiver_records("sandbox")
    assert (blessing.run_id, blessing.owner) == (run.id, "eva")
    assert (waiver.waiver.criterion, waiver.added) == ("kl", None)
    assert [(failure.kind, failure.reason) for failure in history.failures(run.id)] == [("crashed", "out of memory")]
    assert [signature.owner for signature in history.sign_offs(run.id)] == ([] if version == "0001" else ["eva"])
    assert [decision.report for decision in history.earlier_decisions(run.id)] == (
        [run.report] if version == "0003" else []
    )
    history.close()


def test_the_tables_are_those_of_a_new_history(old: Path) -> None:
    history = History.open(old)
    with history._engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == migrating.HEAD
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    history.close()
    folder = Path(migrating.__file__).parent / "migrations"
    assert ScriptDirectory(str(folder)).get_current_head() == migrating.HEAD


def test_the_file_is_kept_as_it_was_and_that_is_said_once(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(old, "SELECT * FROM items")
    for _ in range(2):
        History.open(old).close()
    copy = old.with_name(f"history.sqlite.before-{migrating.HEAD}")
    assert rows(copy, "SELECT * FROM items") == before
    assert capsys.readouterr().err.count(str(copy)) == 1


def test_a_database_that_was_put_back_and_written_to_is_kept_beside_its_first_copy(old: Path) -> None:
    copy = old.with_name(f"history.sqlite.before-{migrating.HEAD}")
    History.open(old).close()
    first = dump(copy)
    for suffix in ("", "-wal", "-shm"):
        old.with_name(old.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, old)
    with closing(sqlite3.connect(old)) as raw, raw:
        raw.execute("UPDATE runs SET branch = 'later'")
    put_back = dump(old)
    History.open(old).close()
    assert dump(copy) == first
    assert dump(old.with_name(f"{copy.name}.2")) == put_back


newest = pytest.mark.parametrize("old", ["0003"], indirect=True)


@newest
def test_a_migration_that_fails_leaves_all_as_it_was(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies after the last table was filled, before its transaction ends."""
    before, upgrade = dump(old), command.upgrade

    def dies(config: Any, revision: str) -> None:
        upgrade(config, revision)
        raise RuntimeError("killed")

    monkeypatch.setattr(command, "upgrade", dies)
    with pytest.raises(RuntimeError, match="killed"):
        History.open(old)
    assert dump(old) == before
    monkeypatch.undo()
    History.open(old).close()
    assert [path.name for path in old.parent.glob("*.before-*")] == [f"history.sqlite.before-{migrating.HEAD}"]


@newest
def test_a_history_that_an_older_program_measures_into_is_left_to_it(old: Path) -> None:
    before = dump(old)
    with (
        exclusive(old.parent / "runs" / "20260101-000000-abcdef.lock"),
        pytest.raises(UsageError, match="run 20260101-000000-abcdef is being measured into it"),
    ):
        History.open(old)
    assert dump(old) == before
    History.open(old).close()


@newest
def test_a_negative_zero_keeps_its_sign(old: Path) -> None:
    with closing(sqlite3.connect(old)) as raw, raw:
        number, run_id, record = raw.execute("SELECT id, run_id, record FROM measurements LIMIT 1").fetchone()
        record = json.dumps(json.loads(record) | {"effect": -0.0})
        raw.execute("UPDATE measurements SET record = ? WHERE id = ?", (record, number))
    history = History.open(old)
    assert str(history.measurements(run_id)[0].effect) == "-0.0"
    history.close()


@newest
def test_what_is_no_record_stops_the_migration_with_a_sentence(old: Path) -> None:
    with closing(sqlite3.connect(old)) as raw, raw:
        raw.execute("UPDATE items SET record = '{' WHERE id = (SELECT max(id) FROM items)")
    before = dump(old)
    with pytest.raises(UsageError, match=r"holds item \d+, which is no JSON .* left as it is"):
        History.open(old)
    assert dump(old) == before


@newest
def test_without_room_for_the_copy_nothing_is_changed(old: Path) -> None:
    before = dump(old)
    old.with_name(f"history.sqlite.before-{migrating.HEAD}.part").mkdir()
    with pytest.raises(StorageError, match=r"cannot be written before .* nothing was changed"):
        History.open(old)
    assert dump(old) == before


def test_a_history_of_before_drift_was_kept_loses_nothing(tmp_path: Path) -> None:
    """`0005.sqlite`: that of 0003, carried over and written to by the program of its time."""
    file = tmp_path / "0005.sqlite"
    with tarfile.open(ASSETS.with_name("before_0006.tar.xz")) as archive:
        archive.extract(file.name, tmp_path, filter="data")
    before = [statement for statement in dump(file) if "alembic_version" not in statement]
    history = History.open(file)
    assert history.kept_drifts() == {}
    assert set(history.fingerprints()) == {(of.family, of.branch) for of in history.branches()}
    with history._engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    history.close()
    grown = 'INSERT INTO "measurements"'  # 0007 and 0008 give each of them three columns
    before = [each.removesuffix(");") + ",NULL,NULL,0);" if each.startswith(grown) else each for each in before]
    assert {each for each in before if "TABLE measurements" not in each} <= set(dump(file))
    assert (tmp_path / f"0005.sqlite.before-{migrating.HEAD}").exists()


def test_what_may_only_be_read_is_refused_where_it_would_be_changed(old: Path, tmp_path: Path) -> None:
    before = dump(old)
    with pytest.raises(UsageError, match=r"has schema 000\d, this q36eval reads 0008, and nothing may be written here"):
        History.open(old, upgrade=False)
    assert (dump(old), list(old.parent.glob("*.before-*"))) == (before, [])
    missing = tmp_path / "folder" / "none.sqlite"
    with pytest.raises(UsageError, match="There is no history"):
        History.open(missing, upgrade=False)
    assert not missing.parent.exists()
    History.open(old).close()
    history = History.open(old, upgrade=False)
    run = history.list_runs()[0]
    with pytest.raises(StorageError, match="readonly"):
        history.delete_run(run.id)
    history.close()
    with closing(sqlite3.connect(old)) as raw, raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UsageError, match="written by a newer q36eval"):
        History.open(old, upgrade=False)


def dump(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as raw:
        return list(raw.iterdump())
