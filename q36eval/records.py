"""The records passed between probes, history, gate and reports.

All are immutable, typed, free of I/O and torch, and survive a round trip through JSON (NaN and infinities are written
as strings).
"""

import re
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_SURROGATE = re.compile("[\ud800-\udfff]")


class Record(BaseModel):
    """Base of all records: frozen, unknown fields refused, non-finite floats written as strings in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def branch_title(family: str, branch: str) -> str:
    """A branch's full name, for use where no family is named: `FAMILY/BRANCH`, `ORG/NAME@REVISION`, or a folder's
    absolute path."""
    return branch if "/" in branch else f"{family}/{branch}"


class Reason(NamedTuple):
    """Why a result is as it is, or missing."""

    code: str
    """The kind of reason, in kebab-case. It stays when the text is reworded."""
    text: str


class ProbeName(StrEnum):
    """One method of judging a branch."""

    WEIGHTS = "weights"
    KL = "kl"
    EVALS = "evals"
    CANARIES = "canaries"
    SERVED = "served"


class Lane(StrEnum):
    """A kind of use that is judged separately."""

    STRUCTURED = "structured"
    FREEFORM = "freeform"


class Verdict(StrEnum):
    """The gate's verdict per lane and overall; only a lane can be NOT_JUDGED."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT_JUDGED"
    """The reference cannot do the task, so no comparison is evidence."""


class Direction(StrEnum):
    """The direction in which a metric improves."""

    LOWER_IS_BETTER = "lower_is_better"
    HIGHER_IS_BETTER = "higher_is_better"


class Counts(Record):
    """The number of items behind a figure. `total = scored + errored + unreadable`.

    `errored`: the engine gave no answer. `unreadable`: both sides answered, and a checker could not read one of them.
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
    """An interval whose two bounds are each one-sided at confidence `(1 + level) / 2`."""

    lower: float
    upper: float
    level: float = Field(gt=0, lt=1)
    method: str


class Tail(Record):
    """Evidence on one quantile: the number of units of each cluster above each threshold of a ladder.

    `quantile` is in (0, 1). `thresholds` ascend; `above[k][c]` counts the units of cluster c with a value greater than
    `thresholds[k]`. The quantile is above a threshold exactly if more than 1 - quantile of all units are, so a test of
    a quantile is a test of a share (Woodruff 1952). A unit with a NaN value counts as above all thresholds.
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
    """The planned clusters, known before any answer of the branch.

    Their number, their `units`, the sum of the `squares` of their sizes, the units beyond `Schedule.largest`, which
    bets omit (`cut`), and, if known, the number of units that the reference gets `right`, estimated from the share of
    those that it answered before the branch.
    """

    clusters: int = Field(ge=1)
    units: float = Field(gt=0)
    squares: float = Field(gt=0)
    cut: float = Field(default=0.0, ge=0)
    right: float | None = Field(default=None, ge=0)


class Schedule(Record):
    """The layout of evidence, fixed before any answer of the branch, for tests that may stop after every block.

    `blocks` is each cluster's block number, ascending in the order of evaluation; a cluster is within one block.
    `largest` is the maximum cluster size for bets (`stats.planned_largest` of the sizes of all planned clusters):
    larger ones are weighted like it. `planned` is the planned end, by family of items ("" without families); None if
    unknown, and then only bets decide.

    If items are drawn by the reference's margin, `last_bet` is the last block with bets: in every block up to it each
    stratum has the same number of clusters. `weights` are the weights of a unit in each of these clusters (its
    stratum's share of the population over its share of the draws), `first` is the plan up to that block with weighted
    sizes, and `expected_changes` are the assumed changed answers per unit of each cluster.
    """

    largest: int | float = Field(gt=0)
    blocks: tuple[int, ...]
    planned: dict[str, PlannedClusters] | None = None
    partial: bool = False  # only in the histories of runs that recorded it
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
    """Sums per independent cluster (document, passage, template draw), the evidence for testing a criterion.

    Each tuple has one entry per cluster. `units` counts the units of the mean (tokens or items) without errored ones;
    `branch` and `reference` are the sums of the per-unit values under each deployment (`reference` is None if the value
    is itself a comparison, such as a divergence); `errored` counts units without a value, and `unreadable` those of
    them with unreadable answers (None: none in any cluster). `bounds` are the smallest and largest possible per-unit
    values, or None if unbounded. Only figures of earlier versions have `strata`; `tail` is set for quantiles: `branch`
    then counts the units above its estimate. `names` identify the clusters and are identical in every run over the same
    items: they pair two runs, and a waiver finds its canary by them. `schedule` is set if the evaluation may stop
    early: the deciding parameters are then fixed in advance. Without it everything was evaluated, with one look.
    `families` name the family of each cluster's items, as in `FamilyCompetence.name`: a policy leaves out all clusters
    of a family that the reference cannot do, never some of them (`of_families`). `weights` are the weights of a unit in
    each cluster, if strata were drawn at unequal shares and the plan was not completed; None means equal weights.
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
        """Hashes the identifying fields; a schedule contains mappings, which are unhashable."""
        return hash((self.units, self.branch, self.reference, self.errored))

    def counts(self) -> Counts:
        """Units with and without a value."""
        scored, without, unreadable = sum(self.units), sum(self.errored), sum(self.unreadable or ())
        return Counts(total=scored + without, scored=scored, errored=without - unreadable, unreadable=unreadable)

    def of_families(self, kept: Collection[str]) -> "Clusters":
        """The clusters of those families, with their part of the plan.

        Raises:
            ValueError: the clusters do not record their families.
        """
        if self.families is None:
            raise ValueError("these clusters do not say which family of items they belong to")
        return self.of_rows([row for row, family in enumerate(self.families) if family in kept], kept)

    def of_rows(self, rows: Sequence[int], families: Collection[str] = ("",)) -> "Clusters":
        """Some of the clusters; the plan keeps only `families`."""
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
    """The reference's competence on one family of items: a canary, a task, or a task at a length.

    Counted over the `items` that the reference answers before the branch. An item is `informative` if the reference
    answers it right within its budget, so that a worse branch could lose it. `causes` counts the others by cause
    ("cut_off", "errored", "wrong"); they add up to `items - informative`. `chance` is the share of items that guessing
    gets right, 0 for free answers. If `items` are a sample, `planned` is the full number.
    """

    name: str
    items: int = Field(ge=0)
    informative: int = Field(ge=0)
    chance: float = Field(default=0.0, ge=0, lt=1)
    causes: dict[str, int] = Field(default_factory=dict)
    planned: int | None = Field(default=None, ge=1)

    @property
    def weight(self) -> int:
        """The number of its planned items."""
        return self.items if self.planned is None else self.planned

    @model_validator(mode="after")
    def _adds_up(self) -> "FamilyCompetence":
        if self.informative + sum(self.causes.values()) != self.items:
            raise ValueError(f"the causes of {self.name} do not account for every item that is not informative")
        return self


class FailureCauses(Record):
    """Why answers are not right, by cause and side: the number of items behind a figure with each cause.

    `unread` names some items that a checker could not read, with the reason, for a person to read.
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

    `estimator` defines `value`, `effect` and `effect_interval`:

    - `census`: everything was counted, nothing sampled; `effect = value`, a degenerate interval.
    - `mean`: `value` is the ratio mean over clusters, `effect = value`.
    - `paired_mean`: `value` and `reference_value` are means, `effect = value - reference_value`, paired by cluster.
    - `paired_proportions`: the same for items that are each 0 or 1 on both sides and each a cluster, evaluated with one
      look: the interval is exact. Otherwise it falls back to `paired_mean`'s, and its method gives the reason.
    - `ratio`: clusters hold sums of an unbounded value with a positive mean; `value` and `reference_value` are
      means, `effect = value / reference_value` (1 = no change), NaN if the reference's mean is not positive.
    - `perplexity`: clusters hold negative log-likelihoods in nats; `value` and `reference_value` are perplexities,
      `effect = value / reference_value` (a ratio; 1 = no change).
    - `stratified_mean`, `root_mean_square`: from earlier versions; nothing judges them.
    - `quantile`: `value` is the smallest value not exceeded by at least that share of the units; `effect = value`.
    - `maximum`: clusters hold each one's largest value; `value` is the largest seen, `effect = value`. It bounds the
      population's from below only.
    - `derived`: computed from another measurement of the run, which is the one to judge; no clusters, `effect = value`.

    `value_interval` is the interval of the branch's own `value`, if requested: "0 of 200" does not prove 0.
    `competence` gives the reference's competence on every family of items behind a paired figure, and `causes` why
    answers of either side are not right; None if the figure has no right and wrong answers.
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
        """Whether its items were laid out in blocks, so that it may be tested after each."""
        return self.clusters is not None and self.clusters.schedule is not None


class Answer(Record):
    """One deployment's answer to one item. `score is None` means errored, unreadable or not scored, never wrong.

    `unreadable` is the reason why a checker could not read the answer: the engine worked, so nothing is repeated.

    Lone surrogates, which a server's JSON may contain but UTF-8 cannot, become U+FFFD, so that everything can be
    written.
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
    """The same JSON value with U+FFFD for lone surrogates, in keys, too."""
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()}
    return type(value)(map(_without_surrogates, value)) if isinstance(value, list | tuple) else value


class ItemOutcome(Record):
    """One item evaluated on both deployments. `item_key` is the content hash of the request."""

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

        Improvement: the reverse. A change between partial scores is not a flip: neither answer was right.
        """
        reference, branch = self.reference.score, self.branch.score
        if reference is None or branch is None:
            return None
        if reference == 1.0 and 0.0 <= branch < 1.0:
            return "regression"
        return "improvement" if branch == 1.0 and 0.0 <= reference < 1.0 else None


FailureKind = Literal["crashed", "skipped", "unmeasurable", "unsuited", "no-tools", "no-reasoning"]
LACKED: dict[FailureKind, tuple[str, ...]] = {
    "no-tools": ("call_failure_rate[all]", "parser_faults[arguments]", "parser_faults[calls]", "parser_faults[finish]"),
    "no-reasoning": ("parser_faults[thought]",),
}
"""The figures of a served model that need tools or reasoning in its chat template."""


class ProbeFailure(Record):
    """A probe without figures, or without some (`LACKED`). `crashed`: the engine or the probe failed; `skipped`: it was
    not to run; `unmeasurable`: the engine lacks a needed ability; `unsuited`: the models do."""

    probe: ProbeName
    reason: str
    kind: FailureKind

    @property
    def figures(self) -> tuple[str, ...]:
        """The keys of the missing figures; empty if all are."""
        return tuple(f"{self.probe}.{name}" for name in LACKED.get(self.kind, ()))

    @property
    def of_the_engine(self) -> bool:
        """Whether it was to run and could not: the gate then exits with code 4."""
        return self.kind not in ("skipped", "unsuited", *LACKED)

    @property
    def sentence(self) -> str:
        """The probe's state, and the reason."""
        if self.kind in ("skipped", *LACKED):
            return self.reason
        words = {"crashed": "broke off", "unmeasurable": "cannot be measured with this engine"}
        return f"the {self.probe} probe {words.get(self.kind, 'does not suit the models')}: {self.reason}"


class DeploymentIdentity(Record):
    """The identity of a deployment. Two deployments are the same only if every field is equal."""

    checkpoint_sha256: str
    tokenizer_sha256: str
    chat_template_sha256: str
    engine: str
    engine_version: str
    settings: dict[str, str] = Field(default_factory=dict)
    kv_cache_dtype: str = "auto"

    def differing_fields(self, other: "DeploymentIdentity") -> list[str]:
        """Names of the fields in which `other` differs, for messages."""
        return [name for name in type(self).model_fields if getattr(self, name) != getattr(other, name)]
