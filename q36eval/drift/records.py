"""What is reported of drift: of one run, of one metric over the runs, and of a branch."""

from datetime import datetime
from enum import StrEnum

from q36eval.records import Direction, Interval, Record, Verdict


class DriftState(StrEnum):
    """What can be said of a metric or a branch; the direction of a drift is `worse`."""

    STABLE = "stable"
    DRIFTING = "drifting"
    INCOMPARABLE = "incomparable"
    NOT_BLESSED = "not_blessed"
    CHART_ONLY = "chart_only"


class PairedDifference(Record):
    """A run minus the blessed run, or their ratio, over the clusters that both evaluated.

    `no_change` is the value that means none (0 or 1), `interval` holds over all watched metrics together, `floor` is
    what the reference loses against itself: a difference within it is noise of the numerics.
    """

    effect: float
    no_change: float = 0.0
    interval: Interval
    clusters: int
    floor: float = 0.0

    @property
    def moved(self) -> bool:
        """Whether the whole interval is beyond the floor on one side of no change; a NaN never is."""
        low, high = self.interval.lower - self.no_change, self.interval.upper - self.no_change
        return low > self.floor or high < -self.floor

    @property
    def up(self) -> bool:
        """Whether the figure rose."""
        return self.effect > self.no_change


class DriftPoint(Record):
    """One run's figure.

    `apart` says why it does not compare with the blessed run (with the newest one where none is blessed), empty where
    it does. `identity_changes` names what changed in the deployment since the last run that compares, the checkpoint
    included.
    """

    run_id: str
    started: datetime
    value: float
    effect: float
    effect_interval: Interval
    verdict: Verdict | None = None
    apart: tuple[str, ...] = ()
    identity_changes: tuple[str, ...] = ()


class MetricDrift(Record):
    """One metric over the runs of a branch, oldest first, and the newest run's paired difference to the blessed run.

    Of a drifting metric `since_run_id` is the first of the newest runs that all differ from the blessed run beyond
    noise in the same direction, `worse` whether that is the bad one, and `changed_there` what changed in the deployment
    with that run. `watched` metrics decide the branch's state.
    """

    key: str
    unit: str
    direction: Direction
    state: DriftState
    statement: str
    blessed_run_id: str | None
    difference: PairedDifference | None = None
    points: tuple[DriftPoint, ...]
    since_run_id: str | None = None
    worse: bool = False
    changed_there: tuple[str, ...] = ()
    watched: bool = True

    @property
    def what_changed(self) -> str:
        """What changed in the deployment where a drift began."""
        return ", ".join(self.changed_there) or "nothing in the deployment"


class DeploymentChange(Record):
    """What changed in the deployment with a run, of what is compared with it."""

    run_id: str
    started: datetime
    changed: tuple[str, ...]


class BranchDrift(Record):
    """A branch over its finished runs: the state of all watched metrics together.

    `worse` is whether any watched metric drifts the bad way. `never_measured` are watched keys that no finished run
    has; they set no state. `changes` are all changes of the deployment, newest run first.
    """

    family: str
    branch: str
    state: DriftState
    statement: str
    worse: bool = False
    runs: int
    blessed_run_id: str | None
    watched: int
    never_measured: tuple[str, ...] = ()
    changes: tuple[DeploymentChange, ...] = ()
    metrics: tuple[MetricDrift, ...]

    def without_points(self) -> "BranchDrift":
        """The same, its metrics without their runs: what is said of them all, in a hundredth of the room."""
        metrics = tuple(metric.model_copy(update={"points": ()}) for metric in self.metrics)
        return self.model_copy(update={"metrics": metrics})
