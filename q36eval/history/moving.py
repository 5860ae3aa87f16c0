"""Runs as a whole: taken out of one history, and put into another as they were there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._runs import add_run
from q36eval.history._tables import timestamp
from q36eval.history._texts import kept
from q36eval.history.records import About, WaiverRecord, WholeRun
from q36eval.history.store import History, measurement_rows, write_items
from q36eval.records import Record

R = TypeVar("R", bound=Record)


def whole_run(history: History, run_id: str) -> WholeRun:
    """A run with everything that history keeps of it."""
    run = history.get_run(run_id)
    blessings = history.blessings(run.branch, run.family)
    about = About(
        failures=tuple(history.failures(run.id)),
        sign_offs=tuple(history.sign_offs(run.id)),
        blessings=tuple(blessing for blessing in reversed(blessings) if blessing.run_id == run.id),
        earlier_decisions=tuple(history.earlier_decisions(run.id)),
        events=tuple(history.events(run.id)),
        artifacts=tuple(history.artifacts(run.id)),
    )
    return WholeRun(
        run=run, measurements=tuple(history.measurements(run.id)), items=tuple(history.items(run.id)), about=about
    )


def put_run(history: History, whole: WholeRun) -> None:
    """Write a run that is not there yet, as it was kept elsewhere: all of it in one transaction, or nothing.

    Raises:
        UsageError: there is a run of that id, or it holds what cannot be kept.
    """
    run = whole.run
    with _fitting(f"run {run.id}"), history._write() as connection:
        if connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run.id)).first() is not None:
            raise UsageError(f"history holds a run {run.id} already.")
        number = add_run(connection, run)
        rows = measurement_rows(connection, number, whole.measurements)
        _insert(connection, tables.measurements, [{**row, "position": i} for i, row in enumerate(rows)])
        write_items(connection, number, whole.items)
        _write_about(connection, run.id, whole.about)


def put_review(history: History, whole: WholeRun) -> int:
    """Write those signatures, blessings and files of a run that is there already which are not; returns how many.

    Raises:
        UsageError: they hold what cannot be kept.
    """
    here = whole_run(history, whole.run.id).about
    about = About(
        sign_offs=_new(whole.about.sign_offs, here.sign_offs),
        blessings=_new(whole.about.blessings, here.blessings),
        artifacts=_new(whole.about.artifacts, here.artifacts),
    )
    with _fitting(f"run {whole.run.id}"), history._write() as connection:
        _write_about(connection, whole.run.id, about)
    return len(about.sign_offs) + len(about.blessings) + len(about.artifacts)


def put_waivers(history: History, records: Iterable[WaiverRecord]) -> list[WaiverRecord]:
    """Write those waivers that are not there yet as they were, whatever number they bear here; returns them.

    Raises:
        UsageError: one holds what cannot be kept; those before it are written.
    """
    written = []
    for record in records:
        known = history.waiver_records(record.family, record.branch)
        if any((one.waiver, one.added) == (record.waiver, record.added) for one in known):
            continue
        row = {
            "family": record.family,
            "branch": record.branch,
            "added": timestamp(record.added),
            "revoked": None if record.revoked is None else timestamp(record.revoked),
            "revoked_by": record.revoked_by,
            **record.waiver.model_dump(mode="json"),
        }
        with _fitting("a waiver"), history._write() as connection:
            connection.execute(insert(tables.waivers).values(**row))
        written.append(record)
    return written


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """What is written in here comes from elsewhere, and may be what no column holds.

    Raises:
        UsageError: it is; nothing was written.
    """
    try:
        yield
    except (DataError, IntegrityError, ProgrammingError, OverflowError) as error:
        raise UsageError(f"{what} holds values that history cannot store; nothing of it was written.") from error


def _new(theirs: tuple[R, ...], ours: tuple[R, ...]) -> tuple[R, ...]:
    return tuple(one for one in theirs if one not in ours)


def _write_about(connection: Connection, run_id: str, about: About) -> None:
    """Everything in `about`, none of which is there yet."""

    def insert_all(table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        _insert(connection, table, [{**row, "run_id": run_id} for row in rows])

    insert_all(tables.probe_failures, (failure.model_dump(mode="json") for failure in about.failures))
    insert_all(tables.sign_offs, ({**one.model_dump(), "at": timestamp(one.at)} for one in about.sign_offs))
    insert_all(
        tables.blessings,
        ({"owner": one.owner, "reason": one.reason, "at": timestamp(one.at)} for one in about.blessings),
    )
    insert_all(
        tables.engine_events,
        ({"at": timestamp(event.at), "kind": event.kind.value, "message": event.message} for event in about.events),
    )
    insert_all(tables.artifacts, (artifact.model_dump(mode="json") for artifact in about.artifacts))
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
