"""Many runs at once: lists, branches, series over time, and their references.

Data for one run's own page is not read.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, and_, exists, func, or_, select, true, union

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._database import Connected
from q36eval.history._runs import runs_of
from q36eval.history._tables import figure, timestamp
from q36eval.history._texts import text_value, texts_of, unreadable
from q36eval.history.records import (
    REFERENCE_ANSWERS,
    BranchKey,
    BranchSummary,
    RunFilter,
    RunRecord,
    RunState,
    RunSummary,
    SeriesPoint,
    SeriesRun,
    StandingVerdict,
)
from q36eval.records import DeploymentIdentity, Direction, Interval, ProbeName, Verdict

LINE = [tables.runs.c[name] for name in RunSummary.model_fields if name != "policy"]
LINE.append(tables.runs.c.policy_name.label("policy"))  # type: ignore[arg-type]  # a label stands for its column
"""The columns of a line."""

PROBES = {probe.value: probe for probe in ProbeName}
DIRECTIONS = {direction.value: direction for direction in Direction}
"""A dictionary is ten times as fast as an enumeration, and a series needs thousands of lookups."""


class Listing(Connected):
    """Reads that go over many runs."""

    def summaries(
        self, wanted: RunFilter | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[RunSummary]:
        """Runs as lines, newest first; of those, `limit` from `offset` on."""
        columns = tables.runs.c
        query = select(*LINE).where(_matching(wanted)).order_by(columns.started.desc(), columns.id.desc())
        return [_summary(row) for row in self._read(query.limit(limit).offset(offset))]

    def list_runs(
        self,
        *,
        family: str | None = None,
        branch: str | None = None,
        state: RunState | None = None,
        limit: int | None = None,
    ) -> list[RunRecord]:
        """Runs that match every given filter, newest first."""
        columns = tables.runs.c
        query = select(tables.runs).where(_matching(RunFilter(family=family, branch=branch, state=state)))
        with self._reading() as connection, self._whole():
            newest = query.order_by(columns.started.desc(), columns.id.desc()).limit(limit)
            return runs_of(connection, connection.execute(newest).all())

    def count_runs(self, wanted: RunFilter | None = None) -> int:
        """How many runs `summaries` would give without a limit."""
        return int(self._read(select(func.count()).select_from(tables.runs).where(_matching(wanted)))[0][0])

    def branches(self) -> list[BranchSummary]:
        """Every branch that has a run, the one with the newest run first."""
        newest = {(row.family, row.branch): row for row in self._read(_newest_of_each(true()))}
        judged = {
            (row.family, row.branch): row for row in self._read(_newest_of_each(tables.runs.c.verdict.is_not(None)))
        }
        summaries = [
            BranchSummary(
                family=family,
                branch=branch,
                runs=row.runs,
                newest=_summary(row),
                judged=_summary(judged[family, branch]) if (family, branch) in judged else None,
            )
            for (family, branch), row in newest.items()
        ]
        return sorted(summaries, key=lambda branch: (branch.newest.started, branch.newest.id), reverse=True)

    def standing_verdicts(self) -> dict[BranchKey, list[StandingVerdict]]:
        """The newest verdict of each branch under each policy, the newest first."""
        with self._reading() as connection, self._whole():
            newest = connection.execute(_newest_verdicts()).scalars()
            rows = _runs_in_full_lines(connection, {one.partition(" ")[2] for one in newest})
            texts = texts_of(connection, (getattr(row, name) for row in rows for name in STANDING_TEXTS))
        values = {number: json.loads(text) for number, text in texts.items()}
        standing: dict[BranchKey, list[StandingVerdict]] = {}
        for row in sorted(rows, key=lambda row: (row.started, row.id), reverse=True):
            verdict = StandingVerdict(
                run=_summary(row),
                identity=None if row.identity is None else _identity(values[row.identity], row.id),
                of_itself=row.identity is not None and row.identity == row.reference_identity,
                policy=values.get(row.policy_text, {}),
                provenance=values[row.provenance],
            )
            standing.setdefault((row.family, row.branch), []).append(verdict)
        return standing

    def metric_keys(self, branch: str, family: str | None = None) -> list[str]:
        """Keys (`probe.metric[slice]`) of all that finished runs of a branch measured, sorted."""
        columns, measured = tables.metrics.c, tables.measurements.c
        of_branch = (
            exists()
            .where(measured.metric == columns.id, measured.run == tables.runs.c.number, _finished(branch, family))
            .correlate(tables.metrics)
        )
        query = select(columns.probe, columns.metric, columns.slice).where(of_branch)
        return sorted(f"{row.probe}.{row.metric}[{row.slice}]" for row in self._read(query))

    def series_runs(self, branch: str, family: str | None = None) -> list[SeriesRun]:
        """Every finished run of a branch, oldest first, whether or not it measured anything."""
        with self._reading() as connection, self._whole():
            return list(_known_runs(connection, branch, family).values())

    def gates_of(self, checkpoint_sha256: str) -> list[RunRecord]:
        """Every gate of that checkpoint under any name, oldest first: those with a verdict, and those with answers but
        no verdict yet. Reports are not included.
        """
        runs = tables.runs.c
        answered = exists().where(tables.items.c.run == runs.number).correlate(tables.runs)
        is_finished = runs.state == RunState.FINISHED.value
        query = select(tables.runs).where(
            runs.checkpoint_sha256 == checkpoint_sha256,
            runs.policy.is_not(None),
            or_(and_(is_finished, runs.verdict.is_not(None)), and_(~is_finished, answered)),
        )
        with self._reading() as connection, self._whole():
            rows = connection.execute(query.order_by(runs.started, runs.id)).all()
            return runs_of(connection, rows, without=("report", "circumstances", "timings"))

    def metric_series(
        self, branch: str, family: str | None = None, keys: Sequence[str] | None = None, newest: int | None = None
    ) -> list[SeriesPoint]:
        """Measurements of every finished run of a branch, or of so many `newest`, oldest run first, without clusters;
        of those `keys` alone."""
        with self._reading() as connection, self._whole():
            readings = {row.id: row for row in connection.execute(select(tables.readings))}
            rows = connection.execute(select(tables.metrics)).all()
            metrics = {row.id: row for row in rows if keys is None or f"{row.probe}.{row.metric}[{row.slice}]" in keys}
            known = _known_runs(connection, branch, family, newest)
            query = _figures_of(branch, family, None if keys is None else list(metrics))
            if newest is not None:
                query = query.where(tables.measurements.c.run.in_(list(known)))
            figures = connection.execute(query).all()
        order = {number: place for place, number in enumerate(known)}
        figures = sorted(figures, key=lambda row: (order[row.run], row.position))
        return [_point(row, known[row.run], metrics[row.metric], readings[row.reading]) for row in figures]

    def reviewed_runs(self) -> set[str]:
        """Runs that a person ever blessed or signed."""
        query = union(select(tables.blessings.c.run_id), select(tables.sign_offs.c.run_id))
        return {row.run_id for row in self._read(query)}

    def fingerprints(self, family: str | None = None, branch: str | None = None) -> dict[BranchKey, str]:
        """By family and branch: SHA-256 over its finished runs, their verdicts and reports, and the blessing in force.

        While it is unchanged, any data read over a branch's finished runs is unchanged.
        """
        runs, texts, blessings = tables.runs.c, tables.texts.c, tables.blessings.c
        wanted = _matching(RunFilter(family=family, branch=branch))
        of_runs = (
            select(runs.family, runs.branch, runs.id, runs.verdict, texts.sha256)
            .select_from(tables.runs.outerjoin(tables.texts, texts.id == runs.report))
            .where(wanted, runs.state == RunState.FINISHED.value)
        )
        of_blessings = (
            select(runs.family, runs.branch, blessings.run_id)
            .join(tables.runs, runs.id == blessings.run_id)
            .where(wanted, blessings.revoked.is_(None))
            .order_by(blessings.at, blessings.id)
        )
        with self._reading() as connection:
            blessed = {(row.family, row.branch): row.run_id for row in connection.execute(of_blessings)}
            rows = connection.execute(of_runs).all()
        digests = {(row.family, row.branch): hashlib.sha256() for row in rows}
        for row in sorted(rows, key=lambda row: row.id):
            report = b"" if row.sha256 is None else bytes(row.sha256)
            # unambiguous, whatever an imported run's name
            digests[row.family, row.branch].update(f"{(row.id, row.verdict, report)!r}\n".encode())
        for key, hashed in digests.items():
            hashed.update(f"blessed {blessed.get(key)!r}".encode())
        return {key: hashed.hexdigest() for key, hashed in digests.items()}


def _newest_of_each(wanted: ColumnElement[bool]) -> Select[Any]:
    """The newest run of each branch among the wanted ones, and how many there are."""
    runs = tables.runs.c
    each = (runs.family, runs.branch)
    # an index on these three is enough: only the newest runs are read
    last = (
        select(*each, func.max(runs.started).label("started"), func.count().label("runs"))
        .where(wanted)
        .group_by(*each)
        .subquery()
    )
    newest_id = (
        select(func.max(runs.id))
        .where(runs.family == last.c.family, runs.branch == last.c.branch, runs.started == last.c.started, wanted)
        .correlate(last)
        .scalar_subquery()
    )
    return select(*LINE, last.c.runs).select_from(last).join(tables.runs, runs.id == newest_id)


STANDING_TEXTS = ("policy_text", "identity", "provenance")


def _newest_verdicts() -> Select[Any]:
    """Start and id of the newest verdict of each branch under each policy: one look at all runs."""
    runs = tables.runs.c
    newest = func.max(runs.started.concat(" ").concat(runs.id))
    return select(newest).where(runs.verdict.is_not(None)).group_by(runs.family, runs.branch, runs.policy)


def _runs_in_full_lines(connection: Connection, ids: Collection[str]) -> list[Any]:
    """The lines of these runs, with the numbers of their texts."""
    columns = tables.runs.c
    numbers = (columns.identity, columns.reference_identity, columns.provenance)
    query = select(*LINE, columns.policy.label("policy_text"), *numbers)
    return list(connection.execute(query.where(columns.id.in_(ids))).all())


def _matching(wanted: RunFilter | None) -> ColumnElement[bool]:
    columns, given = tables.runs.c, wanted or RunFilter()
    equal = (
        (columns.family, given.family),
        (columns.branch, given.branch),
        (columns.state, given.state),
        (columns.verdict, given.verdict),
    )
    conditions: list[ColumnElement[bool]] = [column == str(value) for column, value in equal if value is not None]
    if given.since is not None:
        conditions.append(columns.started >= timestamp(given.since))
    if given.until is not None:
        conditions.append(columns.started <= timestamp(given.until))
    return and_(true(), *conditions)


def _finished(branch: str, family: str | None) -> ColumnElement[bool]:
    return _matching(RunFilter(branch=branch, family=family, state=RunState.FINISHED))


def _summary(row: Any) -> RunSummary:
    values = {name: getattr(row, name) for name in RunSummary.model_fields}
    try:
        return RunSummary.model_validate({**values, "lanes": values["lanes"] or {}})
    except ValidationError as error:
        raise unreadable(f"run {row.id}", error) from error


def _figures_of(branch: str, family: str | None, metrics: list[int] | None) -> Select[Any]:
    measured = tables.measurements.c
    evidence = ("note", "clusters", "value_interval", "competence", "causes")
    columns = [column for column in measured if column.name not in evidence]
    query = select(*columns).join(tables.runs, tables.runs.c.number == measured.run).where(_finished(branch, family))
    return query if metrics is None else query.where(measured.metric.in_(metrics))


def _known_runs(
    connection: Connection, branch: str, family: str | None, newest: int | None = None
) -> dict[int, SeriesRun]:
    """Finished runs of a branch by their numbers, oldest first; so many newest."""
    runs = tables.runs.c
    texts = (runs.suites, runs.identity, runs.reference_identity, runs.provenance)
    query = select(runs.number, runs.id, runs.started, runs.verdict, runs.policy_name, *texts)
    wanted = query.where(_finished(branch, family)).order_by(runs.started.desc(), runs.id.desc()).limit(newest)
    rows = connection.execute(wanted).all()[::-1]
    numbers = {number for row in rows for number in (row.suites, row.identity, row.reference_identity, row.provenance)}
    return _series_runs(rows, texts_of(connection, numbers))


def _series_runs(rows: Sequence[Any], texts: Mapping[int, str]) -> dict[int, SeriesRun]:
    """By their numbers. A text that many runs share is read once."""
    of_runs = {number: row.id for row in rows for number in (row.identity, row.reference_identity)}
    identities = {
        number: _identity(text_value(texts, number, f"run {run_id}"), run_id)
        for number, run_id in of_runs.items()
        if number is not None
    }
    named = {row.provenance: row.id for row in rows}
    told = {number: text_value(texts, number, f"run {run_id}") or {} for number, run_id in named.items()}
    answers = {number: provenance.get(REFERENCE_ANSWERS) or {} for number, provenance in told.items()}
    return {
        row.number: SeriesRun(
            id=row.id,
            started=datetime.fromisoformat(row.started),
            verdict=None if row.verdict is None else Verdict(row.verdict),
            policy=row.policy_name,
            suites=text_value(texts, row.suites, f"run {row.id}"),
            identity=identities.get(row.identity),
            reference_identity=identities.get(row.reference_identity),
            reference_answers=answers[row.provenance],
        )
        for row in rows
    }


def _identity(kept: Any, run_id: str) -> DeploymentIdentity:
    try:
        return DeploymentIdentity.model_validate(kept)
    except ValidationError as error:
        raise unreadable(f"run {run_id}", error) from error


def _point(row: Any, run: SeriesRun, metric: Any, reading: Any) -> SeriesPoint:
    value, effect, lower, upper = row.value, row.effect, row.lower, row.upper
    if row.not_finite:
        value, effect, lower, upper = (figure(row, name) for name in ("value", "effect", "lower", "upper"))
    if value is None or effect is None or lower is None or upper is None:
        raise UsageError(
            "history-damaged", f"history holds a measurement of run {run.id} without a figure: the database is damaged."
        )
    probe, name, slice_name = metric[1:]
    return SeriesPoint(
        run=run,
        probe=PROBES[probe],
        metric=name,
        key=f"{probe}.{name}[{slice_name}]",
        unit=reading.unit,
        direction=DIRECTIONS[reading.direction],
        estimator=reading.estimator,
        value=value,
        effect=effect,
        effect_interval=Interval(lower=lower, upper=upper, level=reading.level, method=reading.method),
    )
