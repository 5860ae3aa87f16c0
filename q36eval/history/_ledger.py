"""The chain of what was decided: an entry for every verdict and every decision by a person, each covering the last.

An entry's hash is of its content and of the hash before it, and the entry of a run covers its evidence (`evidence`). So
whatever is changed behind the program's back, in the tables or in the chain, no longer fits (`q36eval.history._chain`).
Whoever writes the whole chain anew is not found out by it, but by any hash of it that was kept elsewhere.
"""

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select
from sqlalchemy.exc import IntegrityError

from q36eval.errors import StorageError, UsageError
from q36eval.files import canonical_json, json_sha256
from q36eval.history import _tables as tables
from q36eval.history._tables import timestamp

APPENDING = 0x71336C67
"""Advisory lock of PostgreSQL: one transaction at a time appends. (SQLite has one writer anyway.) Nothing else is
waited for while it is held: an entry is the last that a transaction writes."""

DECIDED = frozenset({"verdict", "lanes", "waived", "awaiting_sign_off", "exit_code", "report", "circumstances"})
"""Columns of a run that its decision fills; its evidence is the rest."""

RUN_SAYS = DECIDED | {"run", "evidence", "earlier"}
"""What every entry of a run says, at least."""

NOT_EVIDENCE = DECIDED | {"number", "state", "finished", "imported"}

DECISIONS: dict[str, Table] = {
    "blessing": tables.blessings,
    "waiver": tables.waivers,
    "sign-off": tables.sign_offs,
}
"""The tables of decisions by people, by the kind of their entries."""

Content = dict[str, Any]


def begin(connection: Connection) -> None:
    """The first entry of a new history's chain, with an id that no other history has."""
    append(connection, "history", {"id": uuid.uuid4().hex})


def one_at_a_time(connection: Connection) -> None:
    """Until this transaction ends nobody else adds an entry: what it has read of decisions stays so.

    A transaction that writes to SQLite is alone from its beginning.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(APPENDING)))


def append(connection: Connection, kind: str, content: Content, run_id: str | None = None) -> str:
    """Add an entry, as the last thing that a transaction writes; returns its hash.

    Raises:
        StorageError: the chain does not end where it should: somebody changed it.
    """
    columns = tables.ledger.c
    one_at_a_time(connection)
    query = select(columns.position, columns.sha256).order_by(columns.position.desc()).limit(1)
    last = connection.execute(query).first()
    entry = {
        "position": 0 if last is None else last.position + 1,
        "previous": "" if last is None else last.sha256,
        "at": timestamp(datetime.now(UTC)),
        "kind": kind,
        "run_id": run_id,
        "content": canonical_json(content),
    }
    sha256 = entry_sha256(entry)
    try:
        connection.execute(insert(tables.ledger).values(**entry, sha256=sha256))
    except IntegrityError as error:
        raise StorageError(
            "history-altered",
            "The history's chain of decisions does not end where it should, so nothing can be added to it: somebody "
            "changed the database. See `q36eval history status --verify`.",
        ) from error
    return sha256


def entry_sha256(entry: Mapping[str, Any]) -> str:
    """The hash of an entry, of all its columns but that of the hash."""
    return json_sha256({name: entry[name] for name in ("position", "previous", "at", "kind", "run_id", "content")})


def said_by(entry: Any) -> Content | None:
    """What an entry says; None where it is not what was written, or says less than every entry of its kind."""
    kind = entry.kind.split(" ")[0]
    needed = RUN_SAYS if entry.kind == "run" else {"row"} if kind in DECISIONS else set[str]()
    try:
        content = json.loads(entry.content)
        whole = entry_sha256(entry._mapping) == entry.sha256 and needed <= content.keys()
        if kind in DECISIONS:
            content["row"]["id"] + 0
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return content if whole else None


def append_decision(connection: Connection, kind: str, number: int, what: str | None = None, why: str = "") -> None:
    """Add an entry of a decision by a person as its row is now; `what` was done to it, where it was there before."""
    row = connection.execute(select(DECISIONS[kind]).where(DECISIONS[kind].c.id == number)).one()
    content = {"row": dict(row._mapping), "why": why}
    append(connection, kind if what is None else f"{kind} {what}", content, row._mapping.get("run_id"))


def append_run(connection: Connection, number: int) -> str:
    """Add an entry of a run that ended or was decided anew: its evidence and its decision. Returns its hash."""
    content = run_content(connection, number)
    return append(connection, "run", content, content["run"])


def run_content(connection: Connection, number: int) -> Content:
    """What the entry of a run says of it, as it is now."""
    columns, texts = tables.runs.c, tables.texts.c
    run = connection.execute(select(tables.runs).where(columns.number == number)).one()
    earlier = tables.earlier_decisions.c
    before = connection.execute(
        select(tables.earlier_decisions).where(earlier.run_id == run.id).order_by(earlier.id)
    ).all()
    numbers = {n for row in (run, *before) for n in (row.report, row.circumstances) if n is not None}
    rows = connection.execute(select(texts.id, texts.sha256).where(texts.id.in_(numbers)))
    digests = {row.id: bytes(row.sha256).hex() for row in rows}
    decided = {name: getattr(run, name) for name in sorted(DECIDED - {"report", "circumstances"})}
    return {
        "run": run.id,
        "imported": run.imported,
        "finished": run.finished,
        "evidence": evidence_sha256(connection, number),
        **decided,
        "report": digests.get(run.report),
        "circumstances": digests.get(run.circumstances),
        "earlier": [[row.replaced, digests.get(row.report), digests.get(row.circumstances)] for row in before],
    }


def evidence_sha256(connection: Connection, number: int, changed: Collection[str] = ()) -> str:
    """SHA-256 of all that a run's decision rests on: what it was of, its measurements, items and failures.

    Long texts go in by their own hashes, which costs no reading of them; one of those `changed` no longer is what its
    hash says, and makes another hash of this. Rows are streamed in the order of their keys.
    """
    digest, broken = hashlib.sha256(), frozenset(changed)

    def add(*values: Any) -> None:
        spelled = [value.hex() if isinstance(value, bytes) else value for value in values]
        if broken and not broken.isdisjoint(value for value in spelled if isinstance(value, str)):
            spelled.append("changed")
        digest.update(canonical_json(spelled, non_finite=True).encode() + b"\n")

    columns, names, readings = tables.runs.c, tables.metrics.c, tables.readings.c
    run = connection.execute(select(tables.runs).where(columns.number == number)).one()._mapping
    held = [name for name in run if name not in NOT_EVIDENCE]
    of_run = _digests(connection, [run[name] for name in held if name in tables.RUN_TEXTS])
    for name in sorted(held):
        add("run", name, of_run.get(run[name]) if name in tables.RUN_TEXTS else run[name])
    measured = tables.measurements.c
    query = (
        select(tables.measurements, names.probe, names.metric.label("named"), names.slice)
        .add_columns(readings.unit, readings.direction, readings.estimator, readings.level, readings.method)
        .join(tables.metrics, names.id == measured.metric)
        .join(tables.readings, readings.id == measured.reading)
        .where(measured.run == number)
        .order_by(measured.metric)
    )
    rows = [dict(row._mapping) for row in connection.execute(query)]
    texts = _digests(connection, [row[name] for row in rows for name in ("clusters", "competence")])
    for row in rows:
        kept = {**row, **{name: texts.get(row[name]) for name in ("clusters", "competence")}}
        # numbers of rows say nothing, and neither does the order of writing
        add("measurement", *(kept[name] for name in sorted(kept.keys() - {"run", "metric", "reading", "position"})))
    asked, items = tables.asked.c, tables.items.c
    question, answer = tables.texts.alias("question"), tables.texts.alias("answer")
    outcomes = (
        select(asked.probe, asked.item_group, asked.item_key, items.must_pass, items.flip, items.errored)
        .add_columns(question.c.sha256.label("question"), answer.c.sha256.label("answer"))
        .join_from(tables.items, tables.asked, asked.id == items.asked)
        .outerjoin(question, question.c.id == items.question)
        .outerjoin(answer, answer.c.id == items.answer)
        .where(items.run == number)
        .order_by(items.asked)
    )
    for outcome in connection.execute(outcomes):
        add("item", *outcome)
    failed = tables.probe_failures.c
    failures = select(failed.probe, failed.kind, failed.reason).where(failed.run_id == run["id"]).order_by(failed.id)
    for failure in connection.execute(failures):
        add("failure", *failure)
    return digest.hexdigest()


def _digests(connection: Connection, numbers: Collection[int | None]) -> dict[int | None, bytes]:
    columns, wanted, found = tables.texts.c, sorted({n for n in numbers if n is not None}), dict[int | None, bytes]()
    for start in range(0, len(wanted), 500):
        part = wanted[start : start + 500]
        rows = connection.execute(select(columns.id, columns.sha256).where(columns.id.in_(part)))
        found |= {row.id: bytes(row.sha256) for row in rows}
    return found


def newest_entry(connection: Connection, run_id: str) -> Any:
    """The newest entry of a run's verdict, as a row; None where there is none since the run was last deleted."""
    columns = tables.ledger.c
    query = select(tables.ledger).where(columns.run_id == run_id, columns.kind.in_(("run", "deleted")))
    newest = connection.execute(query.order_by(columns.position.desc()).limit(1)).first()
    return None if newest is None or newest.kind == "deleted" else newest


def check_evidence(connection: Connection, run_id: str, number: int) -> None:
    """Refuse to decide over evidence that is not what was decided over before.

    Raises:
        UsageError: it was changed since, behind the program's back.
    """
    entry = newest_entry(connection, run_id)
    said = None if entry is None else said_by(entry)
    if said is None or said["evidence"] != evidence_sha256(connection, number):
        raise UsageError(
            "history-altered",
            f"The evidence of run {run_id} is not what its verdict was found from: somebody changed the database "
            "since. See `q36eval history status --verify`, and gate the branch anew.",
        )
