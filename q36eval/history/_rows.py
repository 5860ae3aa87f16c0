"""Between records and rows."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Table, and_, or_, select

from q36eval.errors import UsageError
from q36eval.gate.report import GateReport
from q36eval.history import _tables as tables
from q36eval.history._connected import upserting
from q36eval.history._texts import json_text, keep, texts_of
from q36eval.history.records import RunRecord
from q36eval.records import Clusters, DeploymentIdentity, ItemOutcome, Measurement

FLIPS = {"regression": 1, "improvement": 2}

Key = tuple[Any, ...]
AnyRow = Any
"""A row of SQLAlchemy's, whatever its columns."""


def timestamp(moment: datetime) -> str:
    """UTC in ISO 8601 of fixed width."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def json_values(record: BaseModel) -> Any:
    """A record as strict JSON values: non-finite floats as strings, which `model_dump` alone would leave as floats."""
    return json.loads(record.model_dump_json())


def unreadable(what: str, error: ValidationError) -> UsageError:
    """The refusal of a row that says what this version does not know."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "its beginning"
    return UsageError(
        f"history holds {what}, which cannot be read (at {where}: {first['msg'].splitlines()[0].rstrip('.')}): it was "
        "written by a newer version, or changed since."
    )


def numbered(connection: Connection, table: Table, keys: Sequence[Key]) -> dict[Key, int]:
    """Numbers of the rows of a table that are known by their unique columns; they are written where they are new."""
    names = [column.name for column in table.columns if not column.primary_key]
    wanted = sorted(set(keys))
    found = _numbers(connection, table, names, wanted)
    missing = [key for key in wanted if key not in found]
    if missing:
        rows = [dict(zip(names, key, strict=True)) for key in missing]
        connection.execute(upserting(connection)(table).on_conflict_do_nothing(), rows)
        found |= _numbers(connection, table, names, missing)
    return found


def _numbers(connection: Connection, table: Table, names: list[str], keys: Sequence[Key]) -> dict[Key, int]:
    columns, found = [table.c[name] for name in names], {}
    for start in range(0, len(keys), 100):
        several = keys[start : start + 100]
        same = or_(*(and_(*map(_equal, columns, key)) for key in several))
        for row in connection.execute(select(*table.primary_key.columns, *columns).where(same)):
            found[tuple(row[1:])] = int(row[0])
    return found


def _equal(column: Any, value: Any) -> Any:
    return column == value


# runs


def run_texts(run: RunRecord | Mapping[str, Any]) -> dict[str, str | None]:
    """The parts of a run that are kept as texts, by column."""
    values = dict(run) if isinstance(run, RunRecord) else run
    return {
        name: None if values[name] is None else json_text(values[name]) for name in tables.RUN_TEXTS if name in values
    }


def run_row(connection: Connection, run: RunRecord) -> dict[str, Any]:
    """A run as a row; its texts are kept."""
    plain = {
        "id": run.id,
        "family": run.family,
        "branch": run.branch,
        "state": run.state.value,
        "started": timestamp(run.started),
        "finished": None if run.finished is None else timestamp(run.finished),
        "policy_name": None if run.policy is None else run.policy.get("name"),
    }
    return {**plain, **of_report(run.report), **of_identity(run.identity), **kept(connection, run_texts(run))}


def kept(connection: Connection, texts: Mapping[str, str | None]) -> dict[str, int | None]:
    """Columns that refer to texts, which are written."""
    numbers = keep(connection, {text for text in texts.values() if text is not None})
    return {name: None if text is None else numbers[text] for name, text in texts.items()}


def of_report(report: GateReport | None) -> dict[str, Any]:
    """What a list shows of a report."""
    return {
        "verdict": None if report is None else report.verdict.value,
        "lanes": None if report is None else {lane.lane.value: lane.verdict.value for lane in report.lanes},
        "waived": report is not None and bool(report.waived),
        "awaiting_sign_off": report is not None and report.awaiting_sign_off,
        "exit_code": None if report is None else report.exit_code,
    }


def of_identity(identity: DeploymentIdentity | None) -> dict[str, Any]:
    """What a list shows of the branch's identity."""
    return {
        "checkpoint_sha256": None if identity is None else identity.checkpoint_sha256,
        "engine_version": None if identity is None else identity.engine_version,
    }


def runs_of(connection: Connection, rows: Sequence[AnyRow]) -> list[RunRecord]:
    """Rows as runs.

    Raises:
        UsageError: one says what this version does not know: a newer one wrote it, or somebody changed it.
    """
    texts = texts_of(connection, (getattr(row, name) for row in rows for name in tables.RUN_TEXTS))
    return [_run_of(row, texts) for row in rows]


def _run_of(row: AnyRow, texts: Mapping[int, str]) -> RunRecord:
    values = {name: getattr(row, name) for name in RunRecord.model_fields}
    for name in tables.RUN_TEXTS:
        values[name] = text_value(texts, values[name], f"run {row.id}")
    try:
        return RunRecord.model_validate(values)
    except ValidationError as error:
        raise unreadable(f"run {row.id}", error) from error


def text_value(texts: Mapping[int, str], number: int | None, what: str) -> Any:
    """The JSON of a text.

    Raises:
        UsageError: the text is gone.
    """
    if number is None:
        return None
    if number not in texts:
        raise UsageError(f"history holds {what}, of which a part is gone: the database is damaged.")
    return json.loads(texts[number])


# items


def item_texts(outcome: ItemOutcome) -> tuple[str, str]:
    """What was asked with what the reference said to it, and what the branch said."""
    question = outcome.model_dump_json(include={"cluster", "stratum", "prompt", "expected", "reference"})
    return question, outcome.branch.model_dump_json()


def item_rows(connection: Connection, run: int, outcomes: Sequence[ItemOutcome]) -> list[dict[str, Any]]:
    """Item outcomes as rows; of those with one key the last. Their texts are kept."""
    last = {(outcome.probe.value, outcome.group, outcome.item_key): outcome for outcome in outcomes}
    parts = {key: item_texts(outcome) for key, outcome in last.items()}
    numbers = keep(connection, {text for both in parts.values() for text in both})
    known = numbered(connection, tables.asked, list(last))
    return [
        {
            "run": run,
            "asked": known[key],
            "must_pass": outcome.must_pass,
            "flip": None if outcome.flip is None else FLIPS[outcome.flip],
            "errored": outcome.branch.error is not None or outcome.reference.error is not None,
            "question": numbers[parts[key][0]],
            "answer": numbers[parts[key][1]],
        }
        for key, outcome in last.items()
    ]


def outcome_of(row: AnyRow, texts: Mapping[int, str]) -> ItemOutcome:
    """An item outcome from its row, the key of what was asked and its texts.

    Raises:
        UsageError: it says what this version does not know, or a text is gone.
    """
    what = f"the item {row.item_key}"
    parts = {
        "probe": row.probe,
        "group": row.item_group,
        "item_key": row.item_key,
        "must_pass": row.must_pass,
        "branch": text_value(texts, row.answer, what),
    }
    try:
        return ItemOutcome.model_validate(parts | text_value(texts, row.question, what))
    except ValidationError as error:
        raise unreadable(what, error) from error


# measurements

FIGURES = ("value", "reference_value", "effect", "lower", "upper")
NEGATIVE_ZERO = "-0.0"


def measurement_rows(connection: Connection, run: int, measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Measurements as rows, without their position; their clusters are kept as texts."""
    clusters = {m.key: None if m.clusters is None else m.clusters.model_dump_json() for m in measurements}
    numbers = kept(connection, clusters)
    competences = kept(connection, {m.key: _competence_text(m) for m in measurements})
    named = numbered(connection, tables.metrics, [(m.probe.value, m.metric, m.slice) for m in measurements])
    readings = numbered(connection, tables.readings, [_reading(m) for m in measurements])
    return [
        {
            "run": run,
            "metric": named[m.probe.value, m.metric, m.slice],
            "reading": readings[_reading(m)],
            **_figures(m),
            "scored": m.counts.scored,
            "errored": m.counts.errored,
            "unreadable": m.counts.unreadable,
            "note": m.note,
            "value_interval": None if m.value_interval is None else json_values(m.value_interval),
            "clusters": numbers[m.key],
            "competence": competences[m.key],
            "causes": None if m.causes is None else json_values(m.causes),
        }
        for m in measurements
    ]


def _competence_text(measurement: Measurement) -> str | None:
    """Kept as a text, since it is the same in every run against one reference."""
    found = measurement.competence
    return None if found is None else json_text([json_values(family) for family in found])


def _reading(measurement: Measurement) -> Key:
    interval = measurement.effect_interval
    return measurement.unit, measurement.direction.value, measurement.estimator, interval.level, interval.method


def _figures(measurement: Measurement) -> dict[str, Any]:
    interval = measurement.effect_interval
    values = (measurement.value, measurement.reference_value, measurement.effect, interval.lower, interval.upper)
    found = dict(zip(FIGURES, values, strict=True))
    kinds = {name: number_kind(value) for name, value in found.items() if value is not None}
    odd = {name: kind for name, kind in kinds.items() if kind != "finite"}
    stored = {name: value if odd.get(name) in (None, NEGATIVE_ZERO) else None for name, value in found.items()}
    return {**stored, "not_finite": odd or None}


def number_kind(value: float) -> str:
    """What kind of number it is: finite, nan, inf, -inf, or -0.0, of which SQLite keeps no sign."""
    if math.isfinite(value):
        return NEGATIVE_ZERO if value == 0 and math.copysign(1, value) < 0 else "finite"
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def figure(row: AnyRow, name: str) -> float | None:
    """One of the `FIGURES` of a row."""
    kinds = row.not_finite or {}
    if name in kinds:
        return float(kinds[name])
    found: float | None = getattr(row, name)
    return found


def measurement_of(row: AnyRow, texts: Mapping[int, str]) -> Measurement:
    """A measurement from its row, its metric, its reading and its clusters.

    Raises:
        UsageError: it says what this version does not know: a newer one wrote it, or somebody changed it.
    """
    what = f"the measurement {row.probe}.{row.metric_name}[{row.slice}]"
    counted = {name: getattr(row, name) for name in ("scored", "errored", "unreadable")}
    values = {
        "probe": row.probe,
        "metric": row.metric_name,
        "slice": row.slice,
        "unit": row.unit,
        "direction": row.direction,
        "estimator": row.estimator,
        "value": figure(row, "value"),
        "reference_value": figure(row, "reference_value"),
        "effect": figure(row, "effect"),
        "effect_interval": {
            "lower": figure(row, "lower"),
            "upper": figure(row, "upper"),
            "level": row.level,
            "method": row.method,
        },
        "value_interval": row.value_interval,
        "counts": {"total": sum(counted.values()), **counted},
        "causes": row.causes,
        "note": row.note,
    }
    if row.competence is not None:
        values["competence"] = text_value(texts, row.competence, what)
    try:
        found = Measurement.model_validate(values)
        if row.clusters is None:
            return found
        clusters = Clusters.model_validate(text_value(texts, row.clusters, what))
        return found.model_copy(update={"clusters": clusters})
    except ValidationError as error:
        raise unreadable(what, error) from error


# criteria


def criteria_rows(connection: Connection, run: int, report: GateReport) -> list[dict[str, Any]]:
    """The criteria of a report as rows."""
    named = numbered(connection, tables.metrics, [(c.probe.value, c.metric, c.slice) for c in report.criteria])
    return [
        {
            "run": run,
            "criterion": criterion.id,
            "metric": named[criterion.probe.value, criterion.metric, criterion.slice],
            "tier": criterion.tier,
            "verdict": criterion.verdict.value,
            "waived": criterion.waived,
            "loss": _finite(criterion.loss),
            "loss_lower": None if criterion.loss_interval is None else _finite(criterion.loss_interval.lower),
            "loss_upper": None if criterion.loss_interval is None else _finite(criterion.loss_interval.upper),
            "limit": _finite(criterion.limit),
        }
        for criterion in report.criteria
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
