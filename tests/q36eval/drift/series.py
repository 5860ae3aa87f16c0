"""Runs of one metric, as history would give them: 200 tool calls, of which some fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from q36eval.drift import MetricDrift, drift
from q36eval.history import SeriesPoint, SeriesRun
from q36eval.records import DeploymentIdentity, Measurement
from tests.q36eval.gate.evidence import failure_rate, named

IDENTITY = DeploymentIdentity(
    checkpoint_sha256="aa", tokenizer_sha256="bb", chat_template_sha256="cc", engine="vllm", engine_version="1"
)
ITEMS = 200


@dataclass(frozen=True)
class Ran:
    """One run with one measurement of it."""

    point: SeriesPoint
    measurement: Measurement

    @property
    def id(self) -> str:
        return self.point.run.id


def failures(broken: int, slice: str = "tools") -> Measurement:
    """Of 200 named tool calls the first `broken` fail."""
    outcomes = [1] * broken + [0] * (ITEMS - broken)
    return named(failure_rate(outcomes, [0] * ITEMS, slice), [f"tool-call {n}#tool-cal" for n in range(ITEMS)])


def ran(day: int, what: int | Measurement, *, suite: str = "s", reference=IDENTITY, answers=None, **changed) -> Ran:
    """A run of that day; `changed` are fields of its identity."""
    measurement = failures(what) if isinstance(what, int) else what
    probe = measurement.probe
    run = SeriesRun(
        id=f"r{day:02d}",
        started=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day),
        verdict=None,
        policy="sandbox",
        suites={probe.value: suite},
        identity=IDENTITY.model_copy(update=changed),
        reference_identity=reference,
        reference_answers={} if answers is None else {probe.value: answers},
    )
    point = SeriesPoint(
        run=run,
        probe=probe,
        metric=measurement.metric,
        key=measurement.key,
        unit=measurement.unit,
        direction=measurement.direction,
        estimator=measurement.estimator,
        value=measurement.value,
        effect=measurement.effect,
        effect_interval=measurement.effect_interval,
    )
    return Ran(point, measurement)


def measured(runs: Sequence[Ran]):
    """What the measurements of a run are, by its id."""
    return lambda run_id: [one.measurement for one in runs if one.id == run_id]


def followed(runs: Sequence[Ran], blessed: str | None = "r00", **how) -> list[MetricDrift]:
    """The drift of every metric of these runs."""
    return drift([one.point for one in runs], measured(runs), blessed, **how)
