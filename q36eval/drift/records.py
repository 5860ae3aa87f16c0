"""What is reported of drift: of one run, of one metric over the runs, of a branch, and against the blessed run.

`FINDINGS_VERSION` stands beside the records that it is the version of.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from q36eval.gate.blessed_run import against_blessed
from q36eval.records import Direction, Interval, Measurement, Reason, Record, Verdict

FINDINGS_VERSION = 1
"""Raised with every change after which the same runs may be said to have drifted otherwise, or in other words:

1. What is found on 2026-11-22; before it, the hash of all our code stood here.
"""


class DriftState(StrEnum):
    """What can be said of a metric or a branch; which way it drifts is `worse`."""

    STABLE = "stable"
    DRIFTING = "drifting"
    TOO_FEW_RUNS = "too_few_runs"
    INCOMPARABLE = "incomparable"


class DriftPoint(Record):
    """One run's figure on its line, and where the control charts stood after it.

    `line` is a new number wherever the line breaks; `breaks` says why the point does not join its predecessor, empty
    where it does. `comparable` is whether it compares with the newest run, be there a break between them or not.
    `identity_changes` names what changed in the deployment since the run it is compared with, the checkpoint included.
    `expected` and `scale` are in units of the effect: the level before this run was seen, and the spread its residual
    was measured in. `residual`, `ewma`, the two `cusum`s, `shift` and their limits are in standard normal units, None
    before the third run of a line and where there is no chart; both CUSUMs are at least 0, and `high` counts effects
    above what was expected, whichever way is better. `shift` is the greatest change of level between any two stretches
    of the line up to this run. `signal` means that a chart went beyond its limit with this run.
    """

    run_id: str
    started: datetime
    value: float
    effect: float
    effect_interval: Interval
    verdict: Verdict | None = None
    line: int = 0
    breaks: tuple[str, ...] = ()
    comparable: bool = True
    identity_changes: tuple[str, ...] = ()
    expected: float | None = None
    scale: float | None = None
    residual: float | None = None
    ewma: float | None = None
    ewma_limit: float | None = None
    cusum_high: float | None = None
    cusum_low: float | None = None
    cusum_limit: float | None = None
    shift: float | None = None
    shift_limit: float | None = None
    signal: bool = False


class MetricDrift(Record):
    """One metric over the runs of a branch, oldest first, and a plain statement about where it stands now.

    `baseline_run_id` is the blessed run, else the oldest that compares with the newest; `accepted_level` is the mean
    effect over the stretch of runs around it, `level` that over the newest stretch, the same one while nothing moved.
    Of a drifting metric `since_run_id` is the first run of the move, `change` is `level` less `accepted_level` (in
    units of the effect), `worse` whether that is the bad way, and `changed_there` what changed in the deployment
    with that run; where nothing did, `changed_near` is what changed with `near_run_id`, close by: noise may hide where
    a move began. `change_points` are the first runs of all later levels of the newest run's line, whether or not it
    came back since, and last a hint: where it may have changed without an alarm; they set no state.
    `in_control_run_length` is the mean number of runs until the charts of this metric, were it stable, raise a false
    alarm. `watched` metrics decide the branch's state.
    """

    key: str
    unit: str
    direction: Direction
    state: DriftState
    statement: str
    baseline_run_id: str | None
    accepted_level: float | None = None
    level: float | None = None
    points: tuple[DriftPoint, ...]
    since_run_id: str | None = None
    change: float | None = None
    worse: bool = False
    changed_there: tuple[str, ...] = ()
    near_run_id: str | None = None
    changed_near: tuple[str, ...] = ()
    change_points: tuple[str, ...] = ()
    in_control_run_length: float
    watched: bool = True

    @property
    def what_changed(self) -> str:
        """What changed in the deployment where a move began, or near it."""
        near = f" (near it, with run {self.near_run_id}: {', '.join(self.changed_near)})" if self.changed_near else ""
        return ", ".join(self.changed_there) or f"nothing in the deployment{near}"


class DeploymentChange(Record):
    """What changed in the deployment with a run, of what is compared with it."""

    run_id: str
    started: datetime
    changed: tuple[str, ...]


class BranchDrift(Record):
    """A branch over its finished runs: the state of all watched metrics together.

    `in_control_run_length` is that of the whole branch: a stable branch raises one false alarm in so many runs, however
    its metrics are correlated. `worse` is whether any watched metric drifts the bad way. `never_measured` are watched
    keys that no finished run has; they set no state. `changes` are all changes of the deployment, newest run first.
    """

    family: str
    branch: str
    state: DriftState
    statement: str
    worse: bool = False
    runs: int
    baseline_run_id: str | None
    blessed_run_id: str | None
    watched: int
    in_control_run_length: float
    never_measured: tuple[str, ...] = ()
    changes: tuple[DeploymentChange, ...] = ()
    metrics: tuple[MetricDrift, ...]

    def without_points(self) -> "BranchDrift":
        """The same, its metrics without their runs: what is said of them all, in a hundredth of the room."""
        metrics = tuple(metric.model_copy(update={"points": ()}) for metric in self.metrics)
        return self.model_copy(update={"metrics": metrics})


class AgainstBlessed(Record):
    """One metric of a run with the blessed run in the reference's place, paired by the clusters that both asked.

    `effect` is this run less the blessed one, or their ratio; `no_change` is the value that means none (0 or 1). It is
    one look at one run, at the interval's own level: it answers whether other items would agree, where the charts
    answer whether the runs moved. `interval` is None where they cannot be paired, and `note` says why.
    """

    run_id: str
    blessed_run_id: str
    effect: float | None = None
    no_change: float = 0.0
    interval: Interval | None = None
    clusters: int = 0
    note: str = ""

    @property
    def moved(self) -> bool:
        """Whether the interval leaves out no change."""
        return self.interval is not None and not self.interval.lower <= self.no_change <= self.interval.upper


def pair_with_blessed(
    run_id: str, measurement: Measurement, blessed_run_id: str, blessed: Sequence[Measurement]
) -> AgainstBlessed:
    """`measurement` of a run against the blessed run's measurements of the same key."""
    paired = against_blessed(measurement, _distinct(blessed))
    if isinstance(paired, Reason):
        return AgainstBlessed(run_id=run_id, blessed_run_id=blessed_run_id, note=paired.text)
    return AgainstBlessed(
        run_id=run_id,
        blessed_run_id=blessed_run_id,
        effect=paired.effect,
        no_change=1.0 if paired.estimator in ("ratio", "perplexity") else 0.0,
        interval=paired.effect_interval,
        clusters=0 if paired.clusters is None else len(paired.clusters.units),
    )


def _distinct(measurements: Sequence[Measurement]) -> list[Measurement]:
    """A resumed run may hold the same measurement twice."""
    return [one for place, one in enumerate(measurements) if one not in measurements[:place]]
