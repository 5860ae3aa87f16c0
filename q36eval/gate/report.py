"""The gate's result: per criterion, per lane and overall. Pure data: replayable, printable."""

from datetime import date, datetime
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from q36eval.gate.attempts import Attempts, Tried
from q36eval.gate.competence import Competence
from q36eval.gate.noise import NoiseFloor
from q36eval.gate.policy import Margin, Named, Purpose, SchemeFigure, is_absent, is_release
from q36eval.records import Counts, Direction, FailureCauses, Interval, Lane, ProbeFailure, ProbeName, Record, Verdict


class Supplies(Record):
    """The current draws of every canary family, and the largest possible number.

    Only runs of earlier versions have `sources`.
    """

    sources: tuple[dict[str, Any], ...] = ()
    draws: int | None = None
    most_draws: int = 1_000


NOTHING_FOUND = "NOTHING FOUND"
"""The best result of a pre-check."""


class CriterionVerdict(StrEnum):
    """The verdict of one criterion. Only PASS lets a lane pass; NOT_JUDGED decides nothing."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_MEASURED = "NOT_MEASURED"
    NOT_JUDGED = "NOT_JUDGED"
    """The criterion applies only if the reference can do the task, and it cannot."""


UNMEASURED = (CriterionVerdict.NOT_MEASURED, CriterionVerdict.NOT_JUDGED)
"""Verdicts without a figure."""


class Waiver(Record):
    """A reviewer's written exception, in force up to and including `expires`.

    It excuses only what matches every field that is set: a criterion by its id, criteria over a slice, and in these
    only the effect of one canary (by its id; a family's id includes its fixed twin `ID-must-pass`, the twin's id only
    the twin).
    """

    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    criterion: str | None = Field(default=None, min_length=1)
    canary: str | None = Field(default=None, min_length=1)
    slice: str | None = Field(default=None, min_length=1)
    expires: date

    @model_validator(mode="after")
    def _names_something(self) -> "Waiver":
        if self.criterion is None and self.canary is None and self.slice is None:
            raise ValueError("a waiver names a criterion, a canary or a slice")
        return self

    @property
    def scope(self) -> str:
        """The scope as a phrase."""
        named = (("criterion", self.criterion), ("slice", self.slice), ("canary", self.canary))
        return ", ".join(f"{what} {name}" for what, name in named if name is not None)


class SignOff(Record):
    """A reviewer's signature under one run's result: `report_sha256` is the hash of the signed JSON report."""

    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    at: datetime
    report_sha256: str


RULES = 2
"""The version of the rules for judging evidence, stored with every decision; only the same version is replayed."""


class Circumstances(Record):
    """The inputs of a decision besides policy and evidence; stored with the run, so that a replay is exact.

    `on` is the day of the decision, `waivers` the waivers known on it, `waivers_from` the file that replaced history's
    waivers. `blessed_run` is the run for margins `against: blessed`, `rules` the version of judging (`RULES`). `tried`
    are earlier gates of the same deployment by the same criteria; None if not looked up. `supplies` are the items that
    could be evaluated in addition; they decide nothing.
    """

    on: date
    waivers: tuple[Waiver, ...] = ()
    waivers_from: str | None = None
    blessed_run: str | None = None
    require_sign_off: bool = False
    rules: int = Field(default=RULES, ge=RULES, le=RULES)
    tried: Tried | None = None
    supplies: Supplies | None = None


CERTAIN = "not evaluated: the verdict"
"""The start of a message about skipped items that could not have changed the verdict."""


class StageState(StrEnum):
    """The progress of one stage of a run."""

    MEASURED = "measured"
    PARTLY = "partly"
    """A crash or an error prevented part of the measurement."""
    NOT_EVALUATED = "not evaluated"


class Stage(Record):
    """One stage of a run in the order of evaluation, cheap evidence first.

    `items` is the number evaluated of `planned`. `settled` names the criteria that fixed the verdict at this stage,
    whatever later stages would show; those are `not evaluated`.
    """

    name: str
    state: StageState
    items: int = Field(ge=0)
    planned: int = Field(ge=0)
    settled: tuple[str, ...] = ()


class HeldMargin(Record):
    """The margin in use for a criterion whose margin depends on the branch's quantization scheme.

    `schemes` are the stored schemes found by inspection, empty if nothing is quantized; None if the weights were not
    inspected. `accepted` is the policy's figure for them; without one it is None and only the `ceiling` applies, which
    no figure exceeds.
    """

    schemes: tuple[str, ...] | None
    accepted: SchemeFigure | None
    ceiling: float
    ceiling_source: str


class CriterionResult(Named, Record):
    """The result of one criterion.

    `title` is the policy's, if set; `heading` always exists. `code` identifies the kind of `reason` and stays when the
    sentence changes; reports from before codes existed have none. `figure` and `figure_interval` are in the margin's
    own terms (recovery and retention as ratios, losses as losses). `loss`, `loss_interval` and `limit` are the tested
    values: `p_pass` against loss >= limit, `p_fail` against loss <= limit, `p_fail_adjusted` after Holm. Each bound of
    an interval is one-sided at the criterion's `confidence`. Figures are None if nothing could be judged. `to_turn` is
    the movement of the deciding bound, in the loss' unit, that would change the verdict: for PASS, the distance of the
    upper bound inside the limit; for FAIL, of the lower bound outside; for INCONCLUSIVE, of the upper bound outside or,
    beyond its margin alone but not after Holm's correction, of the corrected lower bound inside. `noise_floor` is the
    reference's loss against itself in that figure, None if unmeasured or undefined for the metric. `competence` is set
    if right and wrong answers are compared: figures and counts then cover the families that the reference can do.
    `causes` explain the answers of both sides that are not right, including those left out. `waived_by` is set only if
    waivers made a difference; the verdict stays as found. `margin` is the margin in use; `held` explains it if it
    depends on the scheme. `anomalous` marks an implausible gain, signed or not. `lost_family` is the family whose loss
    determined `p_fail`, if the loss over all items did not.
    """

    id: str
    title: str = Field(default="", exclude_if=is_absent)
    probe: ProbeName
    metric: str
    slice: str
    lanes: tuple[Lane, ...]
    tier: Literal["blocking", "advisory"]
    verdict: CriterionVerdict
    reason: str
    code: str = Field(default="", exclude_if=is_absent)
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
    to_turn: float | None = None
    noise_floor: NoiseFloor | None = None
    counts: Counts | None = None
    infrastructure: bool = False
    competence: Competence | None = Field(default=None, exclude_if=is_absent)
    causes: FailureCauses | None = Field(default=None, exclude_if=is_absent)
    waived_by: tuple[Waiver, ...] = ()
    held: HeldMargin | None = Field(default=None, exclude_if=is_absent)
    anomalous: bool = Field(default=False, exclude_if=is_absent)
    lost_family: str = Field(default="", exclude_if=is_absent)

    @property
    def waived(self) -> bool:
        """Whether waivers set this criterion aside."""
        return bool(self.waived_by)


class LaneResult(Record):
    """The verdict for one kind of use.

    `decisive` names the criteria that prevented PASS, those furthest from changing first (counted faults and missing
    measurements precede them). `nearest` is the criterion on which a change of verdict depends, by `to_turn` as a share
    of its limit: for PASS, the blocking one nearest to its limit (except counts, which one fault changes); for any
    other verdict, the furthest decisive one, because all must change; empty if one of these is a count or has no bound.
    """

    lane: Lane
    verdict: Verdict
    headline: str
    decisive: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()


class GateReport(Record):
    """The gate's result. `exit_code` is that of the process; `notes` are further facts for the reader.

    `criteria` are sorted by tier (blocking first), probe and id. `stages` is the order of evaluation and shows where it
    stopped. If a required sign-off is missing, nothing passes: a report that lacks only the signature
    (`awaiting_sign_off`) is INCONCLUSIVE as a whole, and the lanes keep their verdicts. `attempts` is set if the same
    deployment was gated by the same criteria before. A pre-check never returns PASS: a result that would pass is
    INCONCLUSIVE, with the headline NOTHING FOUND.
    """

    schema_version: Literal[2] = 2
    policy: str
    purpose: Purpose = Field(default="release", exclude_if=is_release)
    verdict: Verdict
    headline: str
    exit_code: int
    decisive: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    lanes: tuple[LaneResult, ...]
    criteria: tuple[CriterionResult, ...]
    failures: tuple[ProbeFailure, ...] = ()
    stages: tuple[Stage, ...] = ()
    awaiting_sign_off: bool = False
    signed_by: tuple[SignOff, ...] = ()
    attempts: Attempts | None = None
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _as_kept_by_earlier_versions(cls, given: Any) -> Any:
        """Accepts reports of earlier versions, which also held suggestions."""
        return (
            {name: value for name, value in given.items() if name != "remedies"} if isinstance(given, dict) else given
        )

    @property
    def of_server_alone(self) -> bool:
        """Whether the policy judges only an endpoint without a reference, and not the quality of its answers."""
        return bool(self.criteria) and all(result.probe is ProbeName.SERVED for result in self.criteria)

    @property
    def nothing_found(self) -> bool:
        """Whether this is a pre-check that found no damage: its best result, which does not approve a release."""
        return self.headline.startswith(NOTHING_FOUND)
