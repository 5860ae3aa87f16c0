"""Whether history is what was written: the chain of entries, and beside it every run and decision that it covers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._database import Connected
from q36eval.history._ledger import (
    DECIDED,
    DECISIONS,
    check_evidence,
    evidence_sha256,
    newest_entry,
    run_content,
    said_by,
)
from q36eval.history._runs import number_of
from q36eval.history._texts import digest, unpacked
from q36eval.history.records import ChainHead, RunState

TEXTS_AT_ONCE = 500

CHANGING = frozenset({"revoked", "revoked_by", "revoked_why", "accepted", "accepted_by"})
"""All that is ever changed of a decision by a person."""


@dataclass(frozen=True)
class Misfit:
    """The first entry of the chain that does not fit, or what it is of; `position` is None where no entry is."""

    position: int | None
    why: str


@dataclass(frozen=True)
class Verification:
    """What was walked: so many entries and runs, the head of the chain, and what does not fit, the earliest first."""

    head: ChainHead
    entries: int
    runs: int
    misfits: tuple[Misfit, ...]

    @property
    def fits(self) -> bool:
        """Whether all of it is what was written."""
        return not self.misfits


class Chained(Connected):
    """What the chain says of history."""

    def entry_of_run(self, run_id: str) -> ChainHead | None:
        """The newest entry of a run's verdict; None of a run that has none."""
        with self._reading() as connection:
            entry = newest_entry(connection, run_id)
        return None if entry is None else ChainHead(position=entry.position, sha256=entry.sha256)

    def check_evidence(self, run_id: str) -> None:
        """Refuse to build on a finished run whose evidence is not what its verdict was found from.

        Raises:
            UsageError: it was changed since, or there is no such run.
        """
        with self._reading() as connection:
            check_evidence(connection, run_id, number_of(connection, run_id))

    def unverified(self, run_ids: Sequence[str]) -> frozenset[str]:
        """Of these runs those whose verdict is not the one that the chain has of them.

        A cheap look, for lists: neither the evidence nor the whole chain is read; `verify` does that.
        """
        with self._reading() as connection, self._whole():
            return _rewritten(connection, run_ids)

    def check_verdict(self, run_id: str) -> None:
        """Refuse to pass on a verdict that is not the one that the chain has of that run.

        Raises:
            UsageError: it was changed since.
        """
        with self._reading() as connection:
            check_verdict(connection, run_id)

    def verify(self) -> Verification:
        """Walk the chain and hold against it all that it covers; in one view of the database, while others write."""
        with self._reading() as connection, self._whole():
            snapshot = connection
            if connection.dialect.name == "postgresql":
                snapshot = connection.execution_options(isolation_level="REPEATABLE READ")
            return verified(snapshot)


def check_verdict(connection: Connection, run_id: str) -> None:
    """As `Chained.check_verdict`, in this transaction."""
    if _rewritten(connection, [run_id]):
        raise UsageError(
            "history-altered",
            f"The verdict of run {run_id} is not what was written: somebody changed the database since. See "
            "`q36eval history status --verify`, and gate the branch anew.",
        )


def _rewritten(connection: Connection, run_ids: Sequence[str]) -> frozenset[str]:
    runs, ledger, texts = tables.runs.c, tables.ledger.c, tables.texts.c
    listed = connection.execute(select(tables.runs).where(runs.id.in_(run_ids))).all()
    of_runs = ledger.run_id.in_([run.id for run in listed]), ledger.kind.in_(("run", "deleted"))
    entries = connection.execute(select(tables.ledger).where(*of_runs).order_by(ledger.position)).all()
    last = {entry.run_id: entry for entry in entries}
    newest = {run_id: entry for run_id, entry in last.items() if entry.kind == "run"}
    numbers = {run.report for run in listed if run.report is not None}
    rows = connection.execute(select(texts.id, texts.sha256).where(texts.id.in_(numbers))) if numbers else ()
    reports = {row.id: bytes(row.sha256).hex() for row in rows}
    return frozenset(
        run.id
        for run in listed
        if not (
            _as_in(newest.get(run.id), run, reports.get(run.report))
            if run.state == RunState.FINISHED.value
            else run.id not in newest  # one that has an entry was finished
        )
    )


def _as_in(entry: Any, run: Any, report: str | None) -> bool:
    said = None if entry is None else said_by(entry)
    plain = DECIDED - {"report", "circumstances"}
    return said is not None and bool(
        said["report"] == report and all(said[name] == getattr(run, name) for name in plain)
    )


def verified(connection: Connection) -> Verification:
    """What `Chained.verify` finds in this view of the database."""
    columns = tables.ledger.c
    entries = connection.execute(select(tables.ledger).order_by(columns.position)).all()
    changed, said = _changed_texts(connection), _Said()
    for entry in entries:
        said.add(entry)
    misfits = [*_walked(entries), *said.misfits, *_decisions(connection, said), *_runs(connection, said, changed)]
    misfits.sort(key=lambda misfit: (misfit.position is None, misfit.position or 0))
    last = entries[-1] if entries else None
    head = ChainHead(position=-1, sha256="") if last is None else ChainHead(position=last.position, sha256=last.sha256)
    return Verification(head, len(entries), len(said.runs), tuple(misfits))


@dataclass
class _Said:
    """What the entries say in the end, with the position of the one that does; `misfits` are of those between."""

    decisions: dict[tuple[str, int], tuple[int, Any]] = field(default_factory=dict)
    runs: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)

    def add(self, entry: Any) -> None:
        """The next entry."""
        content = said_by(entry)
        kind, _, done = entry.kind.partition(" ")
        why = None
        if content is None:
            why = f"entry {entry.position} ({entry.kind}) was changed"
        elif kind in DECISIONS:
            row = content["row"]
            _, before = self.decisions.get((kind, row["id"]), (0, row))
            if any(before.get(name) != row[name] for name in row.keys() - CHANGING):
                why = f"{kind} {row['id']} was changed before it was {done or 'made'}"
            self.decisions[kind, row["id"]] = (entry.position, row)
        elif entry.kind == "run":
            position, last = self.runs.get(entry.run_id, (-1, content))
            if position > self.deleted.get(entry.run_id, -1) and not _follows(last, content):
                why = f"run {entry.run_id} was decided again, and its earlier decision was not kept"
            self.runs[entry.run_id] = (entry.position, content)
        elif entry.kind == "deleted":
            self.deleted[entry.run_id] = entry.position
        if why is not None:
            self.misfits.append(Misfit(entry.position, why))


def _runs(connection: Connection, said: _Said, changed: frozenset[str]) -> Iterator[Misfit]:
    columns = tables.runs.c
    here = {run.id: run for run in connection.execute(select(columns.id, columns.number, columns.state))}
    for run in here.values():
        if run.id not in said.runs and run.state == RunState.FINISHED.value:
            yield Misfit(None, f"run {run.id} is finished, and no entry is of it")
    for run_id, (position, content) in said.runs.items():
        found, deleted, why = here.get(run_id), said.deleted.get(run_id, -1), None
        if deleted > position:
            if found is not None:
                yield Misfit(deleted, f"run {run_id} was deleted, and is there")
            continue
        if found is None:
            why = f"run {run_id} is gone"
        elif found.state != RunState.FINISHED.value:
            why = f"run {run_id} was finished, and is {found.state} now"
        else:
            why = _run_differs(connection, found.number, content, changed)
        if why is not None:
            yield Misfit(position, why)


def _walked(entries: Sequence[Any]) -> Iterator[Misfit]:
    if not entries or entries[0].kind != "history":
        yield Misfit(0, "the first entry of the chain is gone")
    previous = ""
    for expected, entry in enumerate(entries):
        if entry.position != expected:
            yield Misfit(expected, f"entry {expected} is gone")
            return
        if entry.previous != previous:
            yield Misfit(entry.position, f"entry {entry.position} ({entry.kind}) does not follow the one before it")
            return
        previous = entry.sha256


def _follows(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether that is the same run decided again, over the same evidence, with the decision before kept beside it."""
    kept = [one[1:] for one in after["earlier"][len(before["earlier"]) :]]
    return (
        after["evidence"] == before["evidence"]
        and after["earlier"][: len(before["earlier"])] == before["earlier"]
        and kept == [[before["report"], before["circumstances"]]]
    )


def _changed_texts(connection: Connection) -> frozenset[str]:
    """The hashes of the texts that no longer are what their hash says."""
    columns, changed, after = tables.texts.c, set[str](), -1
    while True:
        query = select(columns.id, columns.sha256, columns.data).where(columns.id > after)
        rows = connection.execute(query.order_by(columns.id).limit(TEXTS_AT_ONCE)).all()
        if not rows:
            return frozenset(changed)
        after = rows[-1].id
        changed |= {bytes(row.sha256).hex() for row in rows if not _is_its_hash(row)}


def _is_its_hash(row: Any) -> bool:
    try:
        return digest(unpacked(row.data)) == bytes(row.sha256)
    except UsageError:
        return False


def _decisions(connection: Connection, said: _Said) -> Iterator[Misfit]:
    for kind, table in DECISIONS.items():
        here = {row.id: json.loads(json.dumps(dict(row._mapping))) for row in connection.execute(select(table))}
        for number in here.keys() - {number for of, number in said.decisions if of == kind}:
            yield Misfit(None, f"{kind} {number} is there, and no entry is of it")
        for (of, number), (position, row) in said.decisions.items():
            if of != kind:
                continue
            gone = said.deleted.get(row.get("run_id") or "", -1) > position
            if number not in here:
                if not gone:
                    yield Misfit(position, f"{kind} {number} is gone")
            elif here[number] != row:
                differing = sorted(name for name in row if here[number].get(name) != row[name])
                yield Misfit(position, f"{kind} {number} was changed ({', '.join(differing)})")


def _run_differs(connection: Connection, number: int, said: dict[str, Any], changed: frozenset[str]) -> str | None:
    now = run_content(connection, number)
    if changed:
        now["evidence"] = evidence_sha256(connection, number, changed)
    held = json.loads(json.dumps(now))
    differing = [name for name in said if held.get(name) != said[name]]
    digests = {said["report"], said["circumstances"], *(part for one in said["earlier"] for part in one[1:])}
    if differing == [] and digests.isdisjoint(changed):
        return None
    what = "the evidence" if differing == ["evidence"] else ", ".join(differing) or "the text of a decision"
    return f"of run {said['run']} {what} was changed"
