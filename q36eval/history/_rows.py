"""Between records and rows."""

import json
import math
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Row, Table, UniqueConstraint
from sqlalchemy.dialects.sqlite import insert

from q36eval.errors import UsageError
from q36eval.history.records import RunRecord
from q36eval.records import Clusters, ItemOutcome, Measurement


def timestamp(moment: datetime) -> str:
    """UTC in ISO 8601 of fixed width."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def number_kind(value: float) -> tuple[float | None, str]:
    """The value as SQLite can keep it, and what kind of number it is: finite, nan, inf or -inf."""
    if math.isfinite(value):
        return value, "finite"
    return None, "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def upsert(connection: Connection, table: Table, row: dict[str, Any]) -> None:
    """Insert a row, or replace the one that is equal in the table's unique columns."""
    unique = next(c for c in table.constraints if isinstance(c, UniqueConstraint))
    key = [column.name for column in unique.columns]
    rest = {name: value for name, value in row.items() if name not in key}
    statement = insert(table).values(**row)
    if rest:
        statement = statement.on_conflict_do_update(index_elements=key, set_=rest)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=key)
    connection.execute(statement)


def json_values(record: BaseModel) -> Any:
    """A record as strict JSON values: non-finite floats as strings, which `model_dump` alone would leave as floats."""
    return json.loads(record.model_dump_json())


def run_row(run: RunRecord) -> dict[str, Any]:
    """A run as a row."""
    return {**json_values(run), "started": timestamp(run.started)}


def run_of(row: Row[Any]) -> RunRecord:
    """A row as a run.

    Raises:
        UsageError: it says what this version does not know: a newer one wrote it, or somebody changed it.
    """
    try:
        return RunRecord.model_validate(dict(row._mapping))
    except ValidationError as error:
        raise _unreadable(f"run {row.id}", error) from error


def _unreadable(what: str, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "its beginning"
    return UsageError(
        f"history holds {what}, which cannot be read (at {where}: {first['msg'].splitlines()[0].rstrip('.')}): it was "
        "written by a newer version, or changed since."
    )


def item_row(run_id: str, outcome: ItemOutcome) -> dict[str, Any]:
    """An item outcome as a row."""
    return {
        "run_id": run_id,
        "probe": outcome.probe.value,
        "item_group": outcome.group,
        "item_key": outcome.item_key,
        "must_pass": outcome.must_pass,
        "flip": outcome.flip,
        "errored": outcome.branch.error is not None or outcome.reference.error is not None,
        "record": outcome.model_dump_json(),
    }


def measurement_row(run_id: str, measurement: Measurement) -> dict[str, Any]:
    """A measurement as a row; its clusters, the bulk of it, apart."""
    value, value_kind = number_kind(measurement.value)
    effect, effect_kind = number_kind(measurement.effect)
    clusters = measurement.clusters
    return {
        "run_id": run_id,
        "probe": measurement.probe.value,
        "metric": measurement.metric,
        "slice": measurement.slice,
        "value": value,
        "value_kind": value_kind,
        "effect": effect,
        "effect_kind": effect_kind,
        "scored": measurement.counts.scored,
        "errored": measurement.counts.errored,
        "record": measurement.model_copy(update={"clusters": None}).model_dump_json(),
        "clusters": None if clusters is None else clusters.model_dump_json(),
    }


def measurement_of(record: str, clusters: str | None) -> Measurement:
    """A measurement from its row.

    Raises:
        UsageError: it says what this version does not know: a newer one wrote it, or somebody changed it.
    """
    try:
        measurement = Measurement.model_validate_json(record)
        if clusters is None:
            return measurement
        return measurement.model_copy(update={"clusters": Clusters.model_validate_json(clusters)})
    except ValidationError as error:
        raise _unreadable("a measurement", error) from error
