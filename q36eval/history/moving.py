"""Runs as a whole: taken out of one history, and put into another as they were there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from itertools import chain, islice
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, insert, select
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from q36eval.errors import UsageError
from q36eval.gate.report import SignOff
from q36eval.history import _tables as tables
from q36eval.history._ledger import append_decision, append_run
from q36eval.history._review import check_not_future, inserted
from q36eval.history._runs import add_run
from q36eval.history._tables import timestamp
from q36eval.history._texts import kept
from q36eval.history.records import About, Blessing, RunState, WaiverRecord, WholeRun
from q36eval.history.store import History, measurement_rows, write_items
from q36eval.records import ItemOutcome

ITEMS_AT_ONCE = 500

HERE = {"imported": None, "entry": None}
"""Of a run's record what is this history's own affair."""


def batched(items: Iterable[ItemOutcome], size: int) -> Iterator[list[ItemOutcome]]:
    """So many at a time (`itertools.batched` is of Python 3.12)."""
    following = iter(items)
    while several := list(islice(following, size)):
        yield several


def whole_run(history: History, run_id: str) -> WholeRun:
    """A run with everything that history keeps of it; where its decisions were made is this history's own affair."""
    run = history.get_run(run_id)
    about = About(
        failures=tuple(history.failures(run.id)),
        sign_offs=tuple(sign_off for sign_off, _ in history.signatures(run.id)),
        blessings=tuple(blessing for blessing, _ in history.blessings_of_run(run.id)),
        earlier_decisions=tuple(history.earlier_decisions(run.id)),
        events=tuple(history.events(run.id)),
        artifacts=tuple(history.artifacts(run.id)),
    )
    return WholeRun(
        run=run.model_copy(update=HERE),
        measurements=tuple(history.measurements(run.id)),
        items=tuple(history.items(run.id)),
        about=about,
    )


def put_run(history: History, whole: WholeRun, *, imported: datetime | None, items: Iterable[ItemOutcome] = ()) -> None:
    """Write a run that is not there yet, as it was kept elsewhere: all of it in one transaction, or nothing.

    `items` are more than those that it holds, read as they are written. What people decided of it is not in force where
    it was `imported`; None is for a copy of one's own.

    Raises:
        UsageError: there is a run of that id, or it holds what cannot be kept.
    """
    run = whole.run.model_copy(update={"imported": imported})
    with _fitting(f"run {run.id}"), history._write() as connection:
        if connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run.id)).first() is not None:
            raise UsageError("run-exists", f"history holds a run {run.id} already.")
        number = add_run(connection, run)
        rows = measurement_rows(connection, number, whole.measurements)
        _insert(connection, tables.measurements, [{**row, "position": i} for i, row in enumerate(rows)])
        for several in batched(chain(whole.items, items), ITEMS_AT_ONCE):
            write_items(connection, number, several)
        written = _write_about(connection, run.id, whole.about, imported)
        # the chain last: while one transaction appends to it the others wait
        for kind, one in written:
            append_decision(connection, kind, one, _what(imported))
        if run.state is RunState.FINISHED:
            append_run(connection, number)


def put_review(history: History, whole: WholeRun, *, imported: datetime | None) -> int:
    """Write those signatures, blessings and files of a run that is there already which are not; returns how many.

    Raises:
        UsageError: they hold what cannot be kept.
    """
    here = whole_run(history, whole.run.id).about
    about = About(
        sign_offs=_new(whole.about.sign_offs, here.sign_offs),
        blessings=_new(whole.about.blessings, here.blessings),
        artifacts=tuple(one for one in whole.about.artifacts if one not in here.artifacts),
    )
    with _fitting(f"run {whole.run.id}"), history._write() as connection:
        for kind, one in _write_about(connection, whole.run.id, about, imported):
            append_decision(connection, kind, one, _what(imported))
    return len(about.sign_offs) + len(about.blessings) + len(about.artifacts)


def put_waivers(history: History, records: Iterable[WaiverRecord], *, imported: datetime | None) -> list[WaiverRecord]:
    """Write those waivers that are not there yet as they were, whatever number they bear here; returns them.

    Raises:
        UsageError: one holds what cannot be kept; those before it are written.
    """
    written, known = list[WaiverRecord](), {_same(record) for record in history.waiver_records()}
    for record in records:
        if _same(record) in known:
            continue
        known.add(_same(record))
        row = {
            "family": record.family,
            "branch": record.branch,
            "added": timestamp(record.added),
            "revoked": None if record.revoked is None else timestamp(record.revoked),
            "revoked_by": record.revoked_by,
            **_origin(imported),
            **record.waiver.model_dump(mode="json"),
        }
        with _fitting("a waiver"), history._write() as connection:
            append_decision(connection, "waiver", inserted(connection, "waiver", row), _what(imported))
        written.append(record)
    return written


def _same(record: WaiverRecord) -> tuple[object, ...]:
    """Equal of two records of one waiver."""
    return record.family, record.branch, record.added, record.waiver.model_dump_json()


def check_dates(whole: WholeRun) -> None:
    """Refuse a run of which anything is dated in the future: it would stay the newest of its branch for as long.

    Raises:
        UsageError: something is.
    """
    run, about = whole.run, whole.about
    of_run = f"of run {run.id}"
    dated: list[tuple[str, datetime | None]] = [(f"The start {of_run}", run.started)]
    dated.append((f"The end {of_run}", run.finished))
    dated += [(f"The sign-off {of_run} by {one.owner}", one.at) for one in about.sign_offs]
    for one in about.blessings:
        dated += [(f"The blessing {of_run} by {one.owner}", at) for at in (one.at, one.revoked)]
    dated += [(f"An earlier decision {of_run}", one.replaced) for one in about.earlier_decisions]
    dated += [(f"An event {of_run}", event.at) for event in about.events]
    for what, at in dated:
        if at is not None:
            check_not_future(what, at)
    for circumstances in (run.circumstances, *(one.circumstances for one in about.earlier_decisions)):
        if circumstances is not None:  # a day has begun somewhere before it has here
            begins = datetime.combine(circumstances.on, time.min, UTC) - timedelta(days=1)
            check_not_future(f"A decision {of_run}", begins)


def check_waiver_dates(records: Iterable[WaiverRecord]) -> None:
    """Refuse waivers that were written or revoked in the future.

    Raises:
        UsageError: one was.
    """
    for record in records:
        for at in (record.added, record.revoked):
            if at is not None:
                check_not_future(f"The waiver of {record.waiver.scope} by {record.waiver.owner}", at)


def _what(imported: datetime | None) -> str | None:
    return None if imported is None else "imported"


def _origin(imported: datetime | None) -> dict[str, Any]:
    return {"imported": None if imported is None else timestamp(imported)}


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """What is written in here comes from elsewhere, and may be what no column holds.

    Raises:
        UsageError: it is; nothing was written.
    """
    try:
        yield
    except (DataError, IntegrityError, ProgrammingError, OverflowError) as error:
        raise UsageError(
            "value-not-storable", f"{what} holds values that history cannot store; nothing of it was written."
        ) from error


S = TypeVar("S", SignOff, Blessing)


def _new(theirs: tuple[S, ...], ours: tuple[S, ...]) -> tuple[S, ...]:
    """Whatever became of one here since, it is the same one."""
    known = {(one.owner, one.reason, one.at) for one in ours}
    return tuple(one for one in theirs if (one.owner, one.reason, one.at) not in known)


def _write_about(connection: Connection, run_id: str, about: About, imported: datetime | None) -> list[tuple[str, int]]:
    """Everything in `about`, none of which is there yet; returns kind and number of what people decided."""

    def insert_all(table: Table, rows: Iterable[Mapping[str, Any]]) -> None:
        _insert(connection, table, [{**row, "run_id": run_id} for row in rows])

    origin = {**_origin(imported), "run_id": run_id}
    written = [
        ("sign-off", inserted(connection, "sign-off", {**one.model_dump(), "at": timestamp(one.at), **origin}))
        for one in about.sign_offs
    ]
    for one in about.blessings:
        row = one.model_dump(include={"owner", "reason", "revoked_by", "revoked_why"})
        row |= {"at": timestamp(one.at), "revoked": None if one.revoked is None else timestamp(one.revoked)}
        written.append(("blessing", inserted(connection, "blessing", {**row, **origin})))
    insert_all(tables.probe_failures, (failure.model_dump(mode="json") for failure in about.failures))
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
    return written


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))
