"""Whole runs: exported from one history, and imported into another unchanged."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._review import check_not_future
from q36eval.history._runs import add_run
from q36eval.history._tables import timestamp
from q36eval.history._texts import kept
from q36eval.history.records import About, WholeRun
from q36eval.history.store import History, measurement_rows, write_items

ITEMS_AT_ONCE = 500


def whole_run(history: History, run_id: str) -> WholeRun:
    """A run with its evidence and verdicts. What people decided of it, and when it was imported, stays here."""
    run = history.get_run(run_id)
    about = About(
        failures=tuple(history.failures(run.id)),
        earlier_decisions=tuple(history.earlier_decisions(run.id)),
        events=tuple(history.events(run.id)),
    )
    return WholeRun(
        run=run.model_copy(update={"imported": None}),
        measurements=tuple(history.measurements(run.id)),
        items=tuple(history.items(run.id)),
        about=about,
    )


def put_run(history: History, whole: WholeRun, *, imported: datetime | None) -> None:
    """Write a run that is not there yet, as it was kept elsewhere: all of it in one transaction, or nothing.

    `imported` is the moment of the import; None is for a copy of one's own.

    Raises:
        UsageError: there is a run of that id, or it holds what cannot be kept.
    """
    run = whole.run.model_copy(update={"imported": imported})
    try:
        with history._write() as connection:
            if connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run.id)).first() is not None:
                raise UsageError("run-exists", f"history holds a run {run.id} already.")
            number = add_run(connection, run)
            rows = measurement_rows(connection, number, whole.measurements)
            _insert(connection, tables.measurements, [{**row, "position": i} for i, row in enumerate(rows)])
            for start in range(0, len(whole.items), ITEMS_AT_ONCE):
                write_items(connection, number, whole.items[start : start + ITEMS_AT_ONCE])
            _write_about(connection, run.id, whole.about)
    except (DataError, IntegrityError, ProgrammingError, OverflowError) as error:
        raise UsageError(
            "value-not-storable", f"run {run.id} holds values that history cannot store; nothing of it was written."
        ) from error


def check_dates(whole: WholeRun) -> None:
    """Refuse a run that is dated in the future: it would stay the newest of its branch for as long.

    Raises:
        UsageError: it is.
    """
    run = whole.run
    check_not_future(f"The start of run {run.id}", run.started)
    if run.finished is not None:
        check_not_future(f"The end of run {run.id}", run.finished)


def _write_about(connection: Connection, run_id: str, about: About) -> None:
    """Everything in `about`, none of which is there yet."""

    def insert_all(table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        _insert(connection, table, [{**row, "run_id": run_id} for row in rows])

    insert_all(tables.probe_failures, (failure.model_dump(mode="json") for failure in about.failures))
    insert_all(
        tables.engine_events,
        ({"at": timestamp(event.at), "kind": event.kind.value, "message": event.message} for event in about.events),
    )
    for decision in about.earlier_decisions:
        circumstances = decision.circumstances
        texts = {
            "report": decision.report.model_dump_json(),
            "circumstances": None if circumstances is None else circumstances.model_dump_json(),
        }
        insert_all(tables.earlier_decisions, [{"replaced": timestamp(decision.replaced), **kept(connection, texts)}])


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))
