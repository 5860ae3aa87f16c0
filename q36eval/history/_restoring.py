"""Whole runs from another history, as they were there."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from q36eval.errors import UsageError
from q36eval.gate.report import SignOff
from q36eval.history import _tables as tables
from q36eval.history._connected import Connected
from q36eval.history._rows import item_rows, kept, measurement_rows, timestamp
from q36eval.history._runs import add_run
from q36eval.history.records import Artifact, Blessing, Decision, RunEvent, RunRecord, WaiverRecord
from q36eval.records import ItemOutcome, Measurement, ProbeFailure


class Restoring(Connected):
    """Writes what was written elsewhere before."""

    def restore_run(
        self,
        run: RunRecord,
        *,
        measurements: Sequence[Measurement] = (),
        items: Sequence[ItemOutcome] = (),
        failures: Sequence[ProbeFailure] = (),
        sign_offs: Sequence[SignOff] = (),
        blessings: Sequence[Blessing] = (),
        earlier_decisions: Sequence[Decision] = (),
        events: Sequence[RunEvent] = (),
        artifacts: Sequence[Artifact] = (),
    ) -> None:
        """Write a run with all that is known of it, in one transaction: all of it is there after that, or nothing.

        Raises:
            UsageError: a run of this id is there already.
        """
        with self._write() as connection:
            taken = connection.execute(select(tables.runs.c.id).where(tables.runs.c.id == run.id)).first()
            if taken is not None:
                raise UsageError(f"history holds a run {run.id} already.")
            number = add_run(connection, run)
            rows = measurement_rows(connection, number, measurements)
            _insert(connection, tables.measurements, [{**row, "position": i} for i, row in enumerate(rows)])
            rows = item_rows(connection, number, items)
            _insert(connection, tables.items, [{**row, "position": i} for i, row in enumerate(rows)])
            for table, rows in _notes(failures, sign_offs, blessings, events, artifacts):
                _insert(connection, table, [{**row, "run_id": run.id} for row in rows])
            decisions = [_decision(connection, decision) for decision in earlier_decisions]
            _insert(connection, tables.earlier_decisions, [{**row, "run_id": run.id} for row in decisions])

    def restore_waiver(self, record: WaiverRecord) -> int:
        """Write a waiver as it was, when it was written and taken back included; returns its number here."""
        about = record.model_dump(mode="json", exclude={"number", "waiver", "added", "revoked"})
        moments = {"added": record.added, "revoked": record.revoked}
        about |= {name: None if moment is None else timestamp(moment) for name, moment in moments.items()}
        with self._write() as connection:
            row = {**about, **record.waiver.model_dump(mode="json")}
            number = connection.execute(insert(tables.waivers).values(**row)).inserted_primary_key
        assert number is not None
        return int(number[0])


def _notes(
    failures: Sequence[ProbeFailure],
    sign_offs: Sequence[SignOff],
    blessings: Sequence[Blessing],
    events: Sequence[RunEvent],
    artifacts: Sequence[Artifact],
) -> Iterable[tuple[Table, list[dict[str, Any]]]]:
    yield tables.probe_failures, [failure.model_dump(mode="json") for failure in failures]
    yield tables.sign_offs, [{**sign_off.model_dump(), "at": timestamp(sign_off.at)} for sign_off in sign_offs]
    yield (
        tables.blessings,
        [{"owner": found.owner, "reason": found.reason, "at": timestamp(found.at)} for found in blessings],
    )
    yield (
        tables.engine_events,
        [{"at": timestamp(event.at), "kind": event.kind.value, "message": event.message} for event in events],
    )
    yield tables.artifacts, [artifact.model_dump(mode="json") for artifact in artifacts]


def _decision(connection: Connection, decision: Decision) -> dict[str, Any]:
    hung_on = decision.circumstances
    texts = {
        "report": decision.report.model_dump_json(),
        "circumstances": None if hung_on is None else hung_on.model_dump_json(),
    }
    return {"replaced": timestamp(decision.replaced), **kept(connection, texts)}


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), list(rows))
