"""The records that pass between probes, history, gate and reports.

Everything here is immutable, typed, free of I/O and of torch, and survives a round trip through JSON
(NaN and infinities are written as strings).
"""

import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_SURROGATE = re.compile("[\ud800-\udfff]")


class Record(BaseModel):
    """Base of all records: frozen, unknown fields refused, non-finite floats kept as strings in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def branch_title(family: str, branch: str) -> str:
    """A branch as it is called wherever no family is named: `FAMILY/BRANCH`, `ORG/NAME@REVISION`, or a folder's
    absolute path."""
    return branch if "/" in branch else f"{family}/{branch}"


class Reason(NamedTuple):
    """Why something was judged so, or not at all."""

    code: str
    """The kind of reason, in kebab-case. It stays where the text is reworded."""
    text: str


class ProbeName(StrEnum):
    """One way of judging a branch."""

    WEIGHTS = "weights"
    KL = "kl"
    EVALS = "evals"
    CANARIES = "canaries"
    SERVED = "served"


class Lane(StrEnum):
    """A kind of use that is judged apart."""

    STRUCTURED = "structured"
    FREEFORM = "freeform"


class Verdict(StrEnum):
    """The gate's answer per lane and overall; NOT_JUDGED is a lane's alone."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT_JUDGED"
    """The reference cannot do the task, so that no comparison shows anything."""


class Direction(StrEnum):
    """Which way a metric is better."""

    LOWER_IS_BETTER = "lower_is_better"
    HIGHER_IS_BETTER = "higher_is_better"


class Counts(Record):
    """How many items a figure rests on. `total = scored + errored + unreadable`.

    `errored`: the engine gave no answer. `unreadable`: both sides answered, and a checker could not tell what one says.
    """

    total: int = Field(ge=0)
    scored: int = Field(ge=0)
    errored: int = Field(ge=0)
    unreadable: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _add_up(self) -> "Counts":
        if self.total != self.scored + self.errored + self.unreadable:
            parts = f"{self.scored} scored + {self.errored} errored + {self.unreadable} unreadable"
            raise ValueError(f"counts do not add up: {parts} != {self.total}")
        return self


class Interval(Record):
    """An interval whose two bounds each hold one-sided at confidence `(1 + level) / 2`."""

    lower: float
    upper: float
    level: float = Field(gt=0, lt=1)
    method: str


class Tail(Record):
    """Evidence on one quantile: how many units of each cluster exceed each of a ladder of thresholds.

    `quantile` is in (0, 1). `thresholds` ascend; `above[k][c]` counts the units of cluster c with a value greater than
    `thresholds[k]`. That the quantile lies above a threshold means that more than 1 - quantile of all units do, so that
    a test of a quantile is a test of a share (Woodruff 1952). A unit whose value is no number lies above them all.
    """

    quantile: float = Field(gt=0, lt=1)
    thresholds: tuple[float, ...] = Field(min_length=1)
    above: tuple[tuple[int, ...], ...]

    @model_validator(mode="after")
    def _ascends(self) -> "Tail":
        if len(self.above) != len(self.thresholds) or list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError("a tail needs one row of counts for each of its ascending thresholds")
        return self


class PlannedClusters(Record):
    """Clusters as they were planned, known before any answer of the branch.

    How many, their `units`, the sum of the `squares` of their sizes, the units beyond `Schedule.largest`, which bets
    leave out (`cut`), and, where it is known, how many units the reference gets `right`, by the share of those that it
    answered before the branch was asked.
    """

    clusters: int = Field(ge=1)
    units: float = Field(gt=0)
    squares: float = Field(gt=0)
    cut: float = Field(default=0.0, ge=0)
    right: float | None = Field(default=None, ge=0)


class Schedule(Record):
    """How evidence was laid out before any answer of the branch was seen, where a test may stop after every block.

    `blocks` numbers the block that each cluster was asked in, ascending in the order of asking; a cluster lies within
    one block. `largest` is the size of the largest cluster that bets allow for (`stats.planned_largest` of the sizes of
    all clusters planned, asked or not): larger ones weigh as much as it. `planned` is the planned end, by family of
    items ("" without families); None where it is not known, and bets alone decide.

    Where items are drawn by what the reference's margin says of them, `last_bet` is the last block that is bet on: in
    every block up to it each stratum has the same number of clusters, `weights` say what a unit of each cluster counts
    there (its stratum's share of the population over that of the draws), `first` is what was planned up to that block,
    with sizes weighted, and `expected_changes` are the changed answers per unit that were assumed of each cluster.
    """

    largest: int | float = Field(gt=0)
    blocks: tuple[int, ...]
    planned: dict[str, PlannedClusters] | None = None
    partial: bool = False  # in the histories of runs that recorded it
    last_bet: int | None = None
    weights: tuple[float, ...] | None = None
    first: dict[str, PlannedClusters] | None = None
    expected_changes: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "Schedule":
        given = {self.last_bet is None, self.weights is None, self.first is None, self.expected_changes is None}
        if len(given) != 1:
            raise ValueError("a schedule with draws by margin says its last bet, weights, plan and expected changes")
        return self


PER_CLUSTER = ("units", "branch", "reference", "errored", "unreadable", "strata", "names", "families", "weights")
"""The columns of `Clusters` that hold one entry per cluster."""


class Clusters(Record):
    """Sums per independent cluster (document, passage, template draw), the evidence a criterion is tested on.

    Each tuple has one entry per cluster. `units` counts what the mean is taken over (tokens or items) and excludes
    errored ones; `branch` and `reference` are the sums of the per-unit values under each deployment (`reference` is
    None where the value is itself a comparison, as a divergence is); `errored` counts units that gave no value, and
    `unreadable` those of them whose answers could not be read (None: of none that is so).
    `bounds` are the least and greatest possible per-unit values, or None when unbounded. Only figures of earlier
    versions have `strata`; `tail` is there where a quantile is judged: then `branch` counts the
    units above its estimate. `names` are the clusters' own, alike in every run that asks the same: by them two runs
    pair, and a waiver finds the canary it excuses. `schedule` is there where asking may stop early: what decides must
    then be known beforehand. Without it everything was asked, and one look is taken. `families` name the family of
    items that each cluster belongs to, as `FamilyCompetence.name` does: of a family that the reference cannot do, a
    policy leaves all clusters out, never some of them (`of_families`). `weights` say what a unit of each cluster
    counts, where strata were drawn at unequal shares and not all that was planned was asked; None counts all alike.
    """

    units: tuple[int, ...]
    branch: tuple[float, ...]
    reference: tuple[float, ...] | None = None
    errored: tuple[int, ...]
    bounds: tuple[float, float] | None = None
    strata: tuple[str, ...] | None = None
    tail: Tail | None = None
    schedule: Schedule | None = None
    names: tuple[str, ...] | None = None
    families: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    unreadable: tuple[int, ...] | None = None

    @model_validator(mode="after")
    def _same_length(self) -> "Clusters":
        lengths = {len(column) for name in PER_CLUSTER if (column := getattr(self, name)) is not None}
        if self.tail is not None:
            lengths.update(map(len, self.tail.above))
        if self.schedule is not None:
            columns = (self.schedule.blocks, self.schedule.weights, self.schedule.expected_changes)
            lengths.update(len(column) for column in columns if column is not None)
        if len(lengths) != 1:
            raise ValueError("cluster columns differ in length")
        return self

    def __hash__(self) -> int:
        """Of what tells one from another; a schedule holds mappings, which have none."""
        return hash((self.units, self.branch, self.reference, self.errored))

    def counts(self) -> Counts:
        """Units with and without a value."""
        scored, without, unreadable = sum(self.units), sum(self.errored), sum(self.unreadable or ())
        return Counts(total=scored + without, scored=scored, errored=without - unreadable, unreadable=unreadable)

    def of_families(self, kept: Collection[str]) -> "Clusters":
        """The clusters of those families alone, and the plan of them alone.

        Raises:
            ValueError: the clusters do not say which family they belong to.
        """
        if self.families is None:
            raise ValueError("these clusters do not say which family of items they belong to")
        return self.of_rows([row for row, family in enumerate(self.families) if family in kept], kept)

    def of_rows(self, rows: Sequence[int], families: Collection[str] = ("",)) -> "Clusters":
        """Some of the clusters; `families` are those of which the plan remains."""
        update: dict[str, Any] = {
            name: tuple(column[row] for row in rows)
            for name in PER_CLUSTER
            if (column := getattr(self, name)) is not None
        }
        if self.tail is not None:
            above = tuple(tuple(counts[row] for row in rows) for counts in self.tail.above)
            update["tail"] = self.tail.model_copy(update={"above": above})
        if self.schedule is not None:
            update["schedule"] = _schedule_of(self.schedule, rows, families)
        return self.model_copy(update=update)


def _schedule_of(schedule: Schedule, rows: Sequence[int], kept: Collection[str]) -> Schedule:
    update: dict[str, Any] = {
        name: tuple(column[row] for row in rows)
        for name in ("blocks", "weights", "expected_changes")
        if (column := getattr(schedule, name)) is not None
    }
    for name in ("planned", "first"):
        plan = getattr(schedule, name)
        if plan is not None:
            update[name] = {family: clusters for family, clusters in plan.items() if family in kept}
    return schedule.model_copy(update=update)


class FamilyCompetence(Record):
    """What the reference can do of one family of items: a canary, a task, a task at a length.

    Counted over the `items` that the reference answers before the branch is asked. An item is `informative` where the
    reference answers it right within its budget, so that a worse branch could lose it. `causes` says of the others why
    they are not, by cause ("cut_off", "errored", "wrong"); they add up to `items - informative`. `chance` is the share
    of items that guessing gets right, 0 where answers are free. Where `items` are a sample, `planned` says of how many.
    """

    name: str
    items: int = Field(ge=0)
    informative: int = Field(ge=0)
    chance: float = Field(default=0.0, ge=0, lt=1)
    causes: dict[str, int] = Field(default_factory=dict)
    planned: int | None = Field(default=None, ge=1)

    @property
    def weight(self) -> int:
        """How many items it has among all that are planned."""
        return self.items if self.planned is None else self.planned

    @model_validator(mode="after")
    def _adds_up(self) -> "FamilyCompetence":
        if self.informative + sum(self.causes.values()) != self.items:
            raise ValueError(f"the causes of {self.name} do not account for every item that is not informative")
        return self


class FailureCauses(Record):
    """Why answers are not right, by cause and side: how many of the items that a figure rests on.

    `unread` names some that a checker could not read, and why, so that a person can.
    """

    branch: dict[str, int] = Field(default_factory=dict)
    reference: dict[str, int] = Field(default_factory=dict)
    unread: tuple[str, ...] = ()


Estimator = Literal[
    "census",
    "mean",
    "paired_mean",
    "paired_proportions",
    "ratio",
    "perplexity",
    "stratified_mean",
    "root_mean_square",
    "quantile",
    "maximum",
    "derived",
]


class Measurement(Record):
    """One figure with unit, direction, interval and counts.

    `estimator` says what `value`, `effect` and `effect_interval` are:

    - `census`: everything was counted, nothing sampled; `effect = value`, a degenerate interval.
    - `mean`: `value` is the ratio mean over clusters, `effect = value`.
    - `paired_mean`: `value` and `reference_value` are means, `effect = value - reference_value`, paired by cluster.
    - `paired_proportions`: the same of items that are each 0 or 1 on both sides and clusters of their own, asked at one
      look: the interval is exact. Where they are not, it falls back to `paired_mean`'s and its method says why.
    - `ratio`: clusters hold sums of an unbounded value that is positive on average; `value` and `reference_value` are
      means, `effect = value / reference_value` (1 = no change), NaN where the reference's mean is not positive.
    - `perplexity`: clusters hold negative log-likelihoods in nats; `value` and `reference_value` are perplexities,
      `effect = value / reference_value` (a ratio; 1 = no change).
    - `stratified_mean`, `root_mean_square`: of earlier versions; nothing judges them.
    - `quantile`: `value` is the least value that at least that share of the units does not exceed; `effect = value`.
    - `maximum`: clusters hold each one's greatest value; `value` is the greatest seen, `effect = value`. It bounds the
      population's from below only.
    - `derived`: computed from another measurement of the run, which is the one to judge; no clusters, `effect = value`.

    `value_interval` is that of the branch's own `value`, where it was asked for: "0 of 200" is no proof of 0.
    `competence` says of every family of items behind a paired figure what the reference can do of it, and `causes` why
    answers of either side are not right; None where the figure has no right and wrong answers.
    """

    probe: ProbeName
    metric: str
    slice: str = "all"
    unit: str
    direction: Direction
    estimator: Estimator
    value: float
    value_interval: Interval | None = None
    reference_value: float | None = None
    effect: float
    effect_interval: Interval
    counts: Counts
    clusters: Clusters | None = None
    competence: tuple[FamilyCompetence, ...] | None = None
    causes: FailureCauses | None = None
    note: str = ""

    @property
    def key(self) -> str:
        """`probe.metric[slice]`, unique within a run."""
        return f"{self.probe}.{self.metric}[{self.slice}]"

    @property
    def laid_out(self) -> bool:
        """Whether its items were laid out in blocks, so that it may be tested after every one of them."""
        return self.clusters is not None and self.clusters.schedule is not None


class Answer(Record):
    """What one deployment answered to one item. `score is None` means errored, unreadable or not scored, never wrong.

    `unreadable` says why a checker could not tell what the answer says: the engine did its work, so that nothing is
    asked again.

    Lone surrogates, which no UTF-8 holds and a server's JSON may, become U+FFFD: nothing could be written of them.
    """

    score: float | None
    text: str | None = None
    error: str | None = None
    unreadable: str | None = None
    detail: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_state(self) -> "Answer":
        if self.unreadable is not None and (self.score is not None or self.error is not None):
            raise ValueError("an answer that cannot be read has no score, and no error")
        return self

    @field_validator("text", "error", "unreadable", "detail", mode="before")
    @classmethod
    def _writable(cls, value: object) -> object:
        return _without_surrogates(value)


def _without_surrogates(value: object) -> object:
    """The same JSON value with U+FFFD for lone surrogates, in keys too."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    return type(value)(map(_without_surrogates, value)) if isinstance(value, list | tuple) else value


class ItemOutcome(Record):
    """One item asked of both deployments. `item_key` is the content hash of what was asked."""

    probe: ProbeName
    group: str
    item_key: str
    cluster: str
    stratum: str = "all"
    prompt: str | None = None
    expected: str | None = None
    must_pass: bool = False
    branch: Answer
    reference: Answer

    @property
    def flip(self) -> Literal["regression", "improvement"] | None:
        """Regression: full marks (score 1) under the reference and fewer (0 to below 1) under the branch.

        Improvement: the reverse. One partial score to another is no flip: neither answer was right.
        """
        reference, branch = self.reference.score, self.branch.score
        if reference is None or branch is None:
            return None
        if reference == 1.0 and 0.0 <= branch < 1.0:
            return "regression"
        return "improvement" if branch == 1.0 and 0.0 <= reference < 1.0 else None


class ProbeFailure(Record):
    """A probe that gave no figures. `crashed`: the engine or the probe broke; `skipped`: it was not to run;
    `unmeasurable`: the engine cannot give what it needs; `unsuited`: the reference cannot be asked it."""

    probe: ProbeName
    reason: str
    kind: Literal["crashed", "skipped", "unmeasurable", "unsuited"]

    @property
    def of_the_engine(self) -> bool:
        """Whether it was to run and could not: the gate then ends with 4."""
        return self.kind not in ("skipped", "unsuited")

    @property
    def sentence(self) -> str:
        """What became of the probe, and why."""
        if self.kind == "skipped":
            return self.reason
        words = {"unmeasurable": "cannot be measured with this engine", "unsuited": "does not suit the reference"}
        return f"the {self.probe} probe {words.get(self.kind, self.kind)}: {self.reason}"


class DeploymentIdentity(Record):
    """What really answers. Two deployments are the same only when every field is equal."""

    checkpoint_sha256: str
    tokenizer_sha256: str
    chat_template_sha256: str
    engine: str
    engine_version: str
    settings: dict[str, str] = Field(default_factory=dict)
    kv_cache_dtype: str = "auto"

    def differing_fields(self, other: "DeploymentIdentity") -> list[str]:
        """Names of the fields in which `other` differs, for messages that say which field."""
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]
