"""History: every run, measurement and item, written as it is made."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from q36eval.history import _tables as tables
from q36eval.history._database import upsert
from q36eval.history._review import Review
from q36eval.history._run_list import Listing
from q36eval.history._runs import number_of
from q36eval.history._tables import FIGURES, NEGATIVE_ZERO, figure, number_kind
from q36eval.history._texts import (
    Key,
    Texts,
    json_text,
    json_values,
    keep,
    kept,
    numbered,
    text_value,
    texts_of,
    unreadable,
)
from q36eval.records import Clusters, ItemOutcome, Measurement, ProbeFailure, ProbeName

FLIPS = {"regression": 1, "improvement": 2}

AS_THEY_ARE = ("probe", "slice", "unit", "direction", "estimator", "value_interval", "causes", "note")
"""Fields of a measurement that its row stores unchanged."""


class History(Review, Listing, Texts):
    """The database of runs. Safe to share between threads and processes; every write is committed at once."""

    def add_items(self, run_id: str, outcomes: Iterable[ItemOutcome]) -> None:
        """Write item outcomes. A list is one transaction; items of a lazy iterable are committed as they arrive.

        An existing item (a retry) is replaced.

        Raises:
            UsageError: no such run.
        """
        batches: Iterable[Sequence[ItemOutcome]]
        batches = [outcomes] if isinstance(outcomes, list | tuple) else ([outcome] for outcome in outcomes)
        for batch in batches:
            with self._write() as connection:
                write_items(connection, number_of(connection, run_id), batch)

    def add_measurement(self, run_id: str, measurement: Measurement) -> None:
        """Write one measurement; one of the same key is replaced.

        Raises:
            UsageError: no such run.
        """
        self.add_measurements(run_id, [measurement])

    def add_measurements(self, run_id: str, measurements: Sequence[Measurement]) -> None:
        """Write measurements in one transaction; those of the same keys are replaced.

        Raises:
            UsageError: no such run.
        """
        with self._write() as connection:
            write_measurements(connection, number_of(connection, run_id), measurements)

    def add_failure(self, run_id: str, failure: ProbeFailure) -> None:
        """Record that a probe gave no figures."""
        with self._write() as connection:
            upsert(connection, tables.probe_failures, {"run_id": run_id, **failure.model_dump(mode="json")})

    def clear_failures(self, run_id: str) -> None:
        """Delete a run's probe failures: it is being resumed, and persisting ones will be recorded again."""
        with self._write() as connection:
            connection.execute(delete(tables.probe_failures).where(tables.probe_failures.c.run_id == run_id))

    def items(
        self,
        run_id: str,
        probe: ProbeName | None = None,
        group: str | None = None,
        *,
        flips_only: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[ItemOutcome]:
        """Item outcomes of a run in the order they were first written; of those, `limit` from `offset` on."""
        names, columns = tables.asked.c, tables.items.c
        query = (
            select(names.probe, names.item_group, names.item_key, columns.must_pass, columns.question, columns.answer)
            .join_from(tables.items, tables.asked, names.id == columns.asked)
            .where(_of(run_id, probe, group, flips_only))
            .order_by(columns.position)
        )
        with self._reading() as connection, self._whole():
            rows = connection.execute(query.limit(limit).offset(offset)).all()
            texts = texts_of(connection, (number for row in rows for number in (row.question, row.answer)))
            return [outcome_of(row, texts) for row in rows]

    def groups(self, run_id: str, probe: ProbeName) -> list[str]:
        """The groups of items (canaries, tasks) that a probe evaluated in a run, sorted."""
        names = tables.asked.c
        query = select(names.item_group).join_from(tables.items, tables.asked, names.id == tables.items.c.asked)
        rows = self._read(query.where(_of(run_id, probe, None, False)).distinct())
        return sorted(row.item_group for row in rows)

    def measurements(self, run_id: str) -> list[Measurement]:
        """All measurements of a run, with their clusters, in the order they were first written."""
        columns, metrics, readings = tables.measurements.c, tables.metrics.c, tables.readings.c
        query = (
            select(*(column for column in columns if column.name != "metric"))
            .add_columns(metrics.probe, metrics.metric.label("metric_name"), metrics.slice)
            .add_columns(readings.unit, readings.direction, readings.estimator, readings.level, readings.method)
            .join(tables.metrics, metrics.id == columns.metric)
            .join(tables.readings, readings.id == columns.reading)
            .where(columns.run == _number(run_id))
            .order_by(columns.position)
        )
        with self._reading() as connection, self._whole():
            rows = connection.execute(query).all()
            texts = texts_of(connection, (number for row in rows for number in (row.clusters, row.competence)))
            return [measurement_of(row, texts) for row in rows]

    def failures(self, run_id: str) -> list[ProbeFailure]:
        """The probes of a run that gave no figures."""
        columns = tables.probe_failures.c
        query = select(columns.probe, columns.kind, columns.reason).where(columns.run_id == run_id).order_by(columns.id)
        return [ProbeFailure.model_validate(dict(row._mapping)) for row in self._read(query)]


def write_items(connection: Connection, run: int, outcomes: Sequence[ItemOutcome]) -> None:
    """Item outcomes of the run of that number, within a transaction."""
    columns = tables.items.c
    last = connection.execute(select(func.max(columns.position)).where(columns.run == run)).scalar()
    following = 0 if last is None else last + 1
    rows = [{**row, "position": following + i} for i, row in enumerate(item_rows(connection, run, outcomes))]
    upsert(connection, tables.items, rows, staying=("position",))


def write_measurements(connection: Connection, run: int, measurements: Sequence[Measurement]) -> None:
    """Measurements of the run of that number, within a transaction; one that is replaced keeps its place."""
    columns = tables.measurements.c
    kept = connection.execute(select(columns.metric, columns.position).where(columns.run == run))
    placed = {row.metric: row.position for row in kept}
    following = max(placed.values(), default=-1) + 1
    rows = {row["metric"]: row for row in measurement_rows(connection, run, measurements)}
    for metric, row in rows.items():
        if metric in placed:
            statement = update(tables.measurements).where(columns.run == run, columns.metric == metric)
            connection.execute(statement.values(**row))
    new = [row for metric, row in rows.items() if metric not in placed]
    if new:
        connection.execute(
            insert(tables.measurements), [{**row, "position": following + i} for i, row in enumerate(new)]
        )


def _number(run_id: str) -> ColumnElement[int]:
    return select(tables.runs.c.number).where(tables.runs.c.id == run_id).scalar_subquery()


def _of(run_id: str, probe: ProbeName | None, group: str | None, flips_only: bool) -> ColumnElement[bool]:
    names, columns = tables.asked.c, tables.items.c
    wanted = [columns.run == _number(run_id)]
    if probe is not None:
        wanted.append(names.probe == probe.value)
    if group is not None:
        wanted.append(names.item_group == group)
    if flips_only:
        wanted.append(columns.flip.is_not(None))
    return and_(*wanted)


def item_texts(outcome: ItemOutcome) -> tuple[str, str]:
    """The question with the reference's answer, and the branch's answer."""
    question = outcome.model_dump_json(include={"cluster", "stratum", "prompt", "expected", "reference"})
    return question, outcome.branch.model_dump_json()


def item_rows(connection: Connection, run: int, outcomes: Sequence[ItemOutcome]) -> list[dict[str, Any]]:
    """Item outcomes as rows; the last one of each key. Their texts are stored."""
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


def outcome_of(row: Any, texts: Mapping[int, str]) -> ItemOutcome:
    """An item outcome from its row, the key of what was asked and its texts.

    Raises:
        UsageError: it has content unknown to this version, or a text is missing.
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


def measurement_rows(connection: Connection, run: int, measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Measurements as rows, without their position; their clusters are kept as texts."""
    clusters = {m.key: None if m.clusters is None else m.clusters.model_dump_json() for m in measurements}
    numbers = kept(connection, clusters)
    # stored as texts, since they are the same in every run against one reference
    families = {m.key: m.competence for m in measurements}
    texts = {key: None if of is None else json_text(list(map(json_values, of))) for key, of in families.items()}
    competences = kept(connection, texts)
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


def _reading(measurement: Measurement) -> Key:
    interval = measurement.effect_interval
    return measurement.unit, measurement.direction.value, measurement.estimator, interval.level, interval.method


def _figures(measurement: Measurement) -> dict[str, Any]:
    interval = measurement.effect_interval
    values = (measurement.value, measurement.reference_value, measurement.effect, interval.lower, interval.upper)
    figures = dict(zip(FIGURES, values, strict=True))
    kinds = {name: number_kind(value) for name, value in figures.items() if value is not None}
    odd = {name: kind for name, kind in kinds.items() if kind != "finite"}
    stored = {name: value if odd.get(name) in (None, NEGATIVE_ZERO) else None for name, value in figures.items()}
    return {**stored, "not_finite": odd or None}


def measurement_of(row: Any, texts: Mapping[int, str]) -> Measurement:
    """A measurement from its row, its metric, its reading and its clusters.

    Raises:
        UsageError: it has content unknown to this version: a newer one wrote it, or somebody changed it.
    """
    what = f"the measurement {row.probe}.{row.metric_name}[{row.slice}]"
    counted = {name: getattr(row, name) for name in ("scored", "errored", "unreadable")}
    figures = {name: figure(row, name) for name in FIGURES}
    interval = {"lower": figures.pop("lower"), "upper": figures.pop("upper"), "level": row.level, "method": row.method}
    values = {name: getattr(row, name) for name in AS_THEY_ARE} | figures
    values |= {"metric": row.metric_name, "effect_interval": interval}
    values |= {"counts": {"total": sum(counted.values()), **counted}}
    values |= {"competence": text_value(texts, row.competence, what)}
    try:
        measurement = Measurement.model_validate(values)
        if row.clusters is None:
            return measurement
        clusters = Clusters.model_validate(text_value(texts, row.clusters, what))
        return measurement.model_copy(update={"clusters": clusters})
    except ValidationError as error:
        raise unreadable(what, error) from error
