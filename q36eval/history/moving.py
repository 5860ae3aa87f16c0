"""Runs as a whole: taken out of one history, and put into another."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, insert
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._connected import upsert
from q36eval.history._rows import timestamp
from q36eval.history.records import About, WaiverRecord, WholeRun
from q36eval.history.store import History
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
    """Write a run that is not there yet, as it was kept elsewhere: all of it in one transaction.

    Raises:
        UsageError: there is a run of that id, or it holds what cannot be kept.
    """
    parts = {name: getattr(whole.about, name) for name in About.model_fields}
    with _fitting(f"run {whole.run.id}"):
        history.restore_run(whole.run, measurements=whole.measurements, items=whole.items, **parts)


def put_review(history: History, whole: WholeRun) -> int:
    """Write those signatures, blessings and files of a run that is there already which are not; returns how many."""
    here = whole_run(history, whole.run.id).about
    about = About(
        sign_offs=_new(whole.about.sign_offs, here.sign_offs),
        blessings=_new(whole.about.blessings, here.blessings),
        artifacts=_new(whole.about.artifacts, here.artifacts),
    )
    with _fitting(f"run {whole.run.id}"), history._write() as connection:
        _write_review(connection, whole.model_copy(update={"about": about}))
    return len(about.sign_offs) + len(about.blessings) + len(about.artifacts)


def put_waivers(history: History, records: Iterable[WaiverRecord]) -> list[WaiverRecord]:
    """Write those waivers that are not there yet, whatever number they bear here; returns them."""
    written = []
    for record in records:
        known = history.waiver_records(record.family, record.branch)
        if any((one.waiver, one.added) == (record.waiver, record.added) for one in known):
            continue
        with _fitting("a waiver"):
            history.restore_waiver(record)
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
        raise UsageError(f"{what} holds what no history can keep; nothing of it was written.") from error


def _new(theirs: tuple[R, ...], ours: tuple[R, ...]) -> tuple[R, ...]:
    return tuple(one for one in theirs if one not in ours)


def _write_review(connection: Connection, whole: WholeRun) -> None:
    run_id, about = whole.run.id, whole.about
    for signature in about.sign_offs:
        row = {"run_id": run_id, **signature.model_dump(mode="json"), "at": timestamp(signature.at)}
        connection.execute(insert(tables.sign_offs).values(**row))
    for blessing in about.blessings:
        row = {"run_id": run_id, "owner": blessing.owner, "reason": blessing.reason, "at": timestamp(blessing.at)}
        connection.execute(insert(tables.blessings).values(**row))
    for artifact in about.artifacts:
        upsert(connection, tables.artifacts, artifact.model_dump(mode="json"))
