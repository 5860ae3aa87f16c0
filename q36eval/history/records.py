"""The data that enters and leaves history. Callers never see a table, a session or a row."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from q36eval.gate.report import Circumstances, GateReport, Waiver
from q36eval.records import (
    DeploymentIdentity,
    Direction,
    Estimator,
    Interval,
    ItemOutcome,
    Lane,
    Measurement,
    ProbeFailure,
    ProbeName,
    Record,
    Verdict,
)

BranchKey = tuple[str, str]
"""Family and branch."""

WATCHED = "watch:"
"""The prefix of the branch name for rounds of `q36eval watch`, which are not release candidates."""

ASKED, SECOND_ENDPOINT = "served", "second_endpoint"
"""Where a run's provenance holds how much an endpoint was asked, and in that what the second one was."""
REFERENCE_ANSWERS = "reference_answers"
"""Where a run's provenance holds the hashes of `SeriesRun.reference_answers`."""


class RunState(StrEnum):
    """The state of a run. `interrupted` and `running` runs can be resumed."""

    RUNNING = "running"
    FINISHED = "finished"
    INTERRUPTED = "interrupted"


class RunRecord(Record):
    """One run: the deployment, the suites, the settings, and the result.

    `identity` is None if the branch could not be read. `suites` maps a probe's name to its suite hash; `provenance`
    holds package versions, the git commit and its dirty flag, and the amount of evaluation (`exhaustive`, or only until
    the policy's figures were resolved; `max_items` per eval task). `circumstances` are the other inputs of its verdict,
    `timings` the seconds of each stage and of the set-up before them. `imported` is the time of import from another
    history; None for a local run. Times are UTC.
    """

    id: str
    family: str
    branch: str
    identity: DeploymentIdentity | None
    reference_identity: DeploymentIdentity | None
    policy: dict[str, Any] | None = None
    suites: dict[str, str] = Field(default_factory=dict)
    provenance: dict[str, Any] = Field(default_factory=dict)
    state: RunState
    started: datetime
    finished: datetime | None = None
    verdict: Verdict | None = None
    report: GateReport | None = None
    circumstances: Circumstances | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    imported: datetime | None = None


class Blessing(Record):
    """A reviewer accepted a branch as this run found it; `revoked` where that was taken back, by whom and why."""

    run_id: str
    family: str
    branch: str
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    at: datetime
    revoked: datetime | None = None
    revoked_by: str | None = None
    revoked_why: str | None = None


class WaiverRecord(Record):
    """A waiver as it was written for one branch; `added` and `revoked` are moments (UTC)."""

    number: int
    family: str
    branch: str
    waiver: Waiver
    added: datetime
    revoked: datetime | None = None
    revoked_by: str | None = None


class Archiving(Record):
    """A reviewer took a branch off the list of release candidates, or put it back; the newest counts."""

    family: str
    branch: str
    owner: str
    reason: str
    at: datetime
    archived: bool


class Decision(Record):
    """A decision over a run that a later one replaced at `replaced`: the report, and what it hung on."""

    replaced: datetime
    report: GateReport
    circumstances: Circumstances | None = None


class RunProgress(Record):
    """The progress of a run: `done` of `total` items of a stage, `at` that moment (UTC).

    `remaining` is the terminal's estimate in words, empty before there is one.
    """

    run_id: str
    stage: str
    done: int = Field(ge=0)
    total: int = Field(ge=0)
    remaining: str = ""
    at: datetime


class EventKind(StrEnum):
    """What can happen to a run."""

    BEGUN = "begun"
    RESUMED = "resumed"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    ERROR = "error"
    """The engine or a probe failed."""
    RETRY = "retry"
    """Errored items were evaluated again."""


class RunEvent(Record):
    """Something that happened to a run `at` a moment (UTC)."""

    run_id: str
    at: datetime
    kind: EventKind
    message: str


class About(Record):
    """A run's data besides record, figures and items that is transferred with it; people's decisions stay behind."""

    failures: tuple[ProbeFailure, ...] = ()
    earlier_decisions: tuple[Decision, ...] = ()
    events: tuple[RunEvent, ...] = ()


class WholeRun(Record):
    """A run with its evidence and verdicts, in the order of writing; without signatures and blessings."""

    run: RunRecord
    measurements: tuple[Measurement, ...]
    items: tuple[ItemOutcome, ...]
    about: About


class RunSummary(Record):
    """A run as a line of a list: without report, identity or policy, so that thousands are read at once.

    `policy` is the policy's name; `lanes` the results of its lanes. `checkpoint_sha256` and `engine_version` are those
    of the branch's deployment, None if it could not be identified.
    """

    id: str
    family: str
    branch: str
    state: RunState
    started: datetime
    finished: datetime | None = None
    verdict: Verdict | None = None
    policy: str | None = None
    lanes: dict[Lane, Verdict] = Field(default_factory=dict)
    waived: bool = False
    awaiting_sign_off: bool = False
    exit_code: int | None = None
    checkpoint_sha256: str | None = None
    engine_version: str | None = None
    imported: datetime | None = None

    @property
    def is_gate(self) -> bool:
        """Whether it judges a release candidate: not a round of `watch`, an inspection or one probe alone."""
        return self.policy is not None and not self.branch.startswith(WATCHED)


class BranchSummary(Record):
    """A branch of a family: its number of runs, its newest one, and the newest that judged it."""

    family: str
    branch: str
    runs: int
    newest: RunSummary
    judged: RunSummary | None


@dataclass(frozen=True, slots=True)
class StandingVerdict:
    """A run whose verdict may be the branch's standing one, with its policy and deployment.

    `of_itself`: the deployment was compared with itself.
    """

    run: RunSummary
    identity: DeploymentIdentity | None
    of_itself: bool
    policy: Mapping[str, Any]
    provenance: Mapping[str, Any]


class RunFilter(Record):
    """Which runs: those that match every field that is given. `since` and `until` bound when a run started."""

    family: str | None = None
    branch: str | None = None
    state: RunState | None = None
    verdict: Verdict | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class SeriesRun:
    """One finished run of a branch, with the fields that must agree for a comparison."""

    id: str
    started: datetime
    verdict: Verdict | None
    policy: str | None
    suites: Mapping[str, str]
    identity: DeploymentIdentity | None
    reference_identity: DeploymentIdentity | None
    reference_answers: Mapping[str, str] = field(default_factory=dict)
    """By probe: hash of the reference's answers in the comparison. Older runs stored none."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """One measurement of one finished run, without its clusters; `key` is `probe.metric[slice]`."""

    run: SeriesRun
    probe: ProbeName
    metric: str
    key: str
    unit: str
    direction: Direction
    estimator: Estimator
    value: float
    effect: float
    effect_interval: Interval

    @property
    def suite_sha256(self) -> str | None:
        """Hash of what the measurement's probe evaluated."""
        return self.run.suites.get(self.probe.value)
