"""What the gate answers: per criterion, per lane and overall. Pure data: replayable, printable."""

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
    """Draws of every canary family now, and the most that there can be.

    Only runs of earlier versions have `sources`.
    """

    sources: tuple[dict[str, Any], ...] = ()
    draws: int | None = None
    most_draws: int = 1_000


NOTHING_FOUND = "NOTHING FOUND"
"""The best answer of a pre-check."""


class CriterionVerdict(StrEnum):
    """A criterion's own answer. Only PASS lets a lane pass; NOT_JUDGED decides nothing."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_MEASURED = "NOT_MEASURED"
    NOT_JUDGED = "NOT_JUDGED"
    """A criterion that is judged only where the reference is able, and it is not."""


UNMEASURED = (CriterionVerdict.NOT_MEASURED, CriterionVerdict.NOT_JUDGED)
"""Of these there is no figure to judge."""


class Waiver(Record):
    """A reviewer's written exception, in force up to and including `expires`.

    It excuses what all of its scope names: a criterion by its id, every criterion over a slice, and of them only what
    one canary caused (by its id; a family's names its fixed twin `ID-must-pass` too, the twin's only the twin).
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
        """What it excuses, in words."""
        named = (("criterion", self.criterion), ("slice", self.slice), ("canary", self.canary))
        return ", ".join(f"{what} {name}" for what, name in named if name is not None)


class SignOff(Record):
    """A reviewer's signature under one run as it was found: `report_sha256` is the hash of the JSON report signed."""

    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    at: datetime
    report_sha256: str


RULES = 2
"""The version of how evidence is judged, stored with every decision; decisions of another one are not replayed."""


class Circumstances(Record):
    """What a decision hangs on besides the policy and the evidence; kept with the run, so that a replay is exact.

    `on` is the day of the decision, `waivers` those that were known then, `waivers_from` the file they came from where
    history's own did not count, `blessed_run` the run that margins `against: blessed` were held against, `rules` the
    version of judging (`RULES`). `tried` are the earlier gates of the same deployment by the same criteria; None where
    they were not looked for. `supplies` are what could be asked in addition; they decide nothing.
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
"""So begins why something was left out that could not have changed the verdict."""


class StageState(StrEnum):
    """How far one stage of a run was evaluated."""

    MEASURED = "measured"
    PARTLY = "partly"
    """A crash or an error kept some of it from being measured."""
    NOT_EVALUATED = "not evaluated"


class Stage(Record):
    """One stage of a run in the order of evaluation, cheap evidence first.

    `items` counts what was evaluated of `planned`. `settled` names the criteria by which the verdict stood after this
    stage whatever was still to come; stages after it are `not evaluated`.
    """

    name: str
    state: StageState
    items: int = Field(ge=0)
    planned: int = Field(ge=0)
    settled: tuple[str, ...] = ()


class HeldMargin(Record):
    """Which margin held, of a criterion whose margin depends on the branch's quantization scheme.

    `schemes` are what inspection found stored, none where nothing is quantized; None where the weights were not
    inspected. `accepted` is the policy's figure that holds for them, None where it has none: then the `ceiling` holds
    alone, which no figure exceeds.
    """

    schemes: tuple[str, ...] | None
    accepted: SchemeFigure | None
    ceiling: float
    ceiling_source: str


class CriterionResult(Named, Record):
    """One criterion judged.

    `title` is the policy's, where it gives one; `heading` is always there. `code` names the kind of `reason` and stays
    where that is reworded; reports from before codes existed have none. `figure` and `figure_interval` are in the
    margin's own terms (recovery and retention as ratios, losses as losses); `loss`, `loss_interval` and `limit` are
    what was tested: `p_pass` against loss >= limit, `p_fail` against loss <= limit, `p_fail_adjusted` after Holm. Both
    bounds of an interval hold one-sided at the criterion's `confidence`. Figures are None where nothing could be
    judged. `to_turn` says in the loss' unit by how much the bound that decided would have to move for another verdict:
    of a PASS how far the upper bound lies inside the limit, of a FAIL how far the lower one lies outside, of an
    INCONCLUSIVE how far the upper bound lies outside, or, beyond its margin alone and not after Holm's correction, how
    far the corrected lower bound lies inside. `noise_floor` is what the reference loses against itself in that
    figure, None where it was not measured or the metric has none. `competence` is there where answers are compared that
    are right or wrong: figures and counts are then those of the families that the reference can do. `causes` say why
    answers of either side are not right, also of those left out. `waived_by` is there only where waivers made a
    difference; the verdict beside it stays what was found. `margin` is the one that held; `held` says why it was that
    one, where it depends on the scheme. `anomalous` says that the branch gains more than is plausible, whether or not
    that was signed. `lost_family` is the family of items whose loss gave `p_fail`, where the whole's did not.
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
        """Whether this criterion was set aside by waivers."""
        return bool(self.waived_by)


class LaneResult(Record):
    """The verdict for one kind of use.

    `decisive` names the criteria that made it anything but PASS, those furthest from turning first (counted faults and
    what was not measured before them). `nearest` is the criterion on which turning hangs, by `to_turn` as a share of
    its limit: of a PASS the blocking one nearest to its limit (counts, which one fault turns, apart), of any other the
    furthest of the decisive ones, for all of them must turn; empty where one of those is a count or has no bound.
    """

    lane: Lane
    verdict: Verdict
    headline: str
    decisive: tuple[str, ...] = ()
    nearest: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()


class GateReport(Record):
    """The gate's answer. `exit_code` is that of the process; `notes` say what a reader should know beside it.

    `criteria` come by tier (blocking first), probe and id, whatever order the policy wrote them in. `stages` is the
    order of evaluation, and where it stopped. Where a sign-off is required and missing nothing passes: what only lacks
    it (`awaiting_sign_off`) is INCONCLUSIVE as a whole, and the lanes keep theirs. `attempts` is there where the same
    deployment was gated by the same criteria before. Of a pre-check nothing passes: what would have is INCONCLUSIVE,
    and its headline says that nothing was found.
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
        """Their reports also held what would help."""
        return (
            {name: value for name, value in given.items() if name != "remedies"} if isinstance(given, dict) else given
        )

    @property
    def of_server_alone(self) -> bool:
        """Whether only what an endpoint shows without a reference is judged, and nothing how good its answers are."""
        return bool(self.criteria) and all(result.probe is ProbeName.SERVED for result in self.criteria)

    @property
    def nothing_found(self) -> bool:
        """Whether this is a pre-check that found no damage: its best answer, and no release."""
        return self.headline.startswith(NOTHING_FOUND)
