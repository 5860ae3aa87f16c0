"""What a run leaves besides its figures: how far it is, what happened to it, and which files it wrote."""

from datetime import UTC, datetime

from sqlalchemy import insert, select

from q36eval.history import _tables as tables
from q36eval.history._connected import Connected, upsert
from q36eval.history._rows import timestamp
from q36eval.history.records import Artifact, EventKind, RunEvent, RunProgress


class Traces(Connected):
    """The tables that follow a run while it works."""

    def set_progress(self, progress: RunProgress) -> None:
        """Say how far a run is; what was said before is replaced."""
        row = {**progress.model_dump(mode="json"), "at": timestamp(progress.at)}
        with self._write() as connection:
            upsert(connection, tables.run_progress, row)

    def progress(self, run_id: str) -> RunProgress | None:
        """What a run last said of how far it is; None where it never did."""
        columns = tables.run_progress.c
        rows = self._read(select(tables.run_progress).where(columns.run_id == run_id))
        return RunProgress.model_validate(dict(rows[0]._mapping)) if rows else None

    def add_event(self, run_id: str, kind: EventKind | str, message: str, at: datetime | None = None) -> None:
        """Write down what happened to a run, now or `at` a known moment.

        Raises:
            ValueError: no such kind.
        """
        row = {
            "run_id": run_id,
            "at": timestamp(at or datetime.now(UTC)),
            "kind": EventKind(kind).value,
            "message": message,
        }
        with self._write() as connection:
            connection.execute(insert(tables.engine_events).values(**row))

    def events(self, run_id: str) -> list[RunEvent]:
        """What happened to a run, in that order."""
        columns = tables.engine_events.c
        query = select(columns.run_id, columns.at, columns.kind, columns.message).where(columns.run_id == run_id)
        return [RunEvent.model_validate(dict(row._mapping)) for row in self._read(query.order_by(columns.id))]

    def add_artifact(self, artifact: Artifact) -> None:
        """Write down a file of a run; one of the same name is replaced."""
        with self._write() as connection:
            upsert(connection, tables.artifacts, artifact.model_dump(mode="json"))

    def artifacts(self, run_id: str) -> list[Artifact]:
        """The files of a run, by name."""
        columns = tables.artifacts.c
        query = select(columns.run_id, columns.name, columns.sha256, columns.size_bytes)
        rows = self._read(query.where(columns.run_id == run_id))
        return sorted((Artifact.model_validate(dict(row._mapping)) for row in rows), key=lambda found: found.name)
