"""What the gate answers: per criterion, per lane and overall. Pure data, replayable and printable."""

from datetime import date
from enum import StrEnum
from typing import Literal

from pydantic import Field

from q36eval.gate.noise import NoiseFloor
from q36eval.gate.policy import Margin
from q36eval.records import Counts, Direction, Interval, Lane, ProbeFailure, ProbeName, Record, Verdict


class CriterionVerdict(StrEnum):
    """A criterion's own answer. Only PASS lets a lane pass."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_MEASURED = "NOT_MEASURED"


class Waiver(Record):
    """A reviewer's written exception to one criterion, in force up to and including `expires`."""

    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    criterion: str = Field(min_length=1)
    expires: date


class CriterionResult(Record):
    """One criterion judged.

    `figure` and `figure_interval` are in the margin's own terms (recovery and retention as ratios, losses as losses);
    `loss`, `loss_interval` and `limit` are what was tested: `p_pass` against loss >= limit, `p_fail` against
    loss <= limit, `p_fail_adjusted` after Holm. Both bounds of an interval hold one-sided at the criterion's
    `confidence`. Figures are None where nothing could be judged. `noise_floor` is what the reference loses against
    itself in that figure, None where it was not measured or the metric has none. `waived_by` is set only where a waiver
    made a difference; the verdict beside it stays what was found.
    """

    id: str
    probe: ProbeName
    metric: str
    slice: str
    lanes: tuple[Lane, ...]
    tier: Literal["blocking", "advisory"]
    verdict: CriterionVerdict
    reason: str
    margin: Margin
    confidence: float
    unit: str | None = None
    direction: Direction | None = None
    value: float | None = None
    reference_value: float | None = None
    figure: float | None = None
    figure_interval: Interval | None = None
    loss: float | None = None
    loss_interval: Interval | None = None
    limit: float | None = None
    p_pass: float = 1.0
    p_fail: float = 1.0
    p_fail_adjusted: float = 1.0
    noise_floor: NoiseFloor | None = None
    counts: Counts | None = None
    infrastructure: bool = False
    waived_by: Waiver | None = None

    @property
    def waived(self) -> bool:
        """Whether this criterion was set aside by a waiver."""
        return self.waived_by is not None


class LaneResult(Record):
    """The verdict for one kind of use; `decisive` names the criteria that made it anything but PASS."""

    lane: Lane
    verdict: Verdict
    headline: str
    decisive: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()


class GateReport(Record):
    """The gate's answer. `exit_code` is that of the process; `notes` say what a reader should know beside it."""

    schema_version: Literal[1] = 1
    policy: str
    verdict: Verdict
    headline: str
    exit_code: int
    decisive: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    lanes: tuple[LaneResult, ...]
    criteria: tuple[CriterionResult, ...]
    failures: tuple[ProbeFailure, ...] = ()
    notes: tuple[str, ...] = ()
