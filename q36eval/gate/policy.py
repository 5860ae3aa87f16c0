"""The policy: which measurements decide, by which margin, for which lane, and where each figure comes from."""

from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from q36eval.errors import UsageError
from q36eval.metrics import criterion_title, metric_of
from q36eval.records import Lane, ProbeName
from q36eval.schemes import mixture_name, parts_of
from q36eval.stats import LookShares, MarginKind

Purpose = Literal["release", "pre-check"]


def is_release(purpose: object) -> bool:
    """The default purpose is not written: signatures and resumable runs hash the written form."""
    return purpose == "release"


THRESHOLD_KINDS = ("max_value", "min_retention")
"""Margins that limit a loss in nats per token; a threshold may be a multiple of them."""

NON_FINITE = "non_finite_tokens"
"""The KL probe's count of scored tokens with NaN or infinite figures of the branch."""

CriterionId = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)]

Number = Annotated[float, Strict()]
"""Refuses booleans and strings, which would be read as 1 or as the spelled number; accepts integers."""
Whole = Annotated[int, Strict()]
"""The same for integers."""


class PolicyModel(BaseModel):
    """Base of the models for files that a person writes: frozen, unknown keys refused, NaN and infinities refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def is_absent(value: object) -> bool:
    """Empty and missing values are not written: signatures hash the written form."""
    return not value


class SchemeFigure(PolicyModel):
    """The accepted figure for one quantization scheme, or for exactly that mixture (`NVFP4 + FP8_BLOCK`)."""

    scheme: str = Field(
        min_length=1,
        description="As inspection finds it, such as NVFP4, FP8_BLOCK, W4A16; or exactly a mixture of them, "
        "NVFP4 + FP8_BLOCK. A mixture without a figure takes the strictest of its parts'.",
    )
    value: Number = Field(description="In the margin's unit; never beyond its value, the ceiling.")
    source: str = Field(min_length=1, description="Where the figure comes from; a changed figure needs a new source.")

    @field_validator("scheme")
    @classmethod
    def _known(cls, scheme: str) -> str:
        return mixture_name(parts_of(scheme))


class Margin(PolicyModel):
    """The allowed loss, by its `kind`; for recovery and retention 1 means no loss.

    Against the blessed run the comparison is cluster by cluster. For `max_share` each cluster counts by its worst
    document.

    If `schemes` has figures, `value` is the ceiling for every scheme, and a branch whose scheme has a figure must meet
    it (`q36eval.gate.margins`).
    """

    kind: MarginKind = Field(
        description="max_value: the figure itself. max_increase: the loss against the baseline. min_recovery: "
        "branch / baseline of a score. min_retention: perplexity of the baseline / of the branch. max_count: how "
        "many may be counted. max_share: which share of the independent clusters may lie beyond a threshold."
    )
    value: Number = Field(description="In the metric's unit; a ratio for recovery and retention.")
    against: Literal["reference", "blessed"] = Field(
        default="reference",
        description="The baseline: the reference (default), or the run that the branch was last blessed with.",
    )
    source: str = Field(min_length=1, description="Where the value comes from; a changed value needs a new source.")
    beyond: Number | None = Field(
        default=None, gt=0, exclude_if=is_absent, description="For max_share: the threshold, in nats per token or unit."
    )
    beyond_margins: Number | None = Field(
        default=None,
        gt=0,
        exclude_if=is_absent,
        description="For max_share: the threshold, as a multiple of the margin of criterion `of`.",
    )
    of: CriterionId | None = Field(
        default=None, exclude_if=is_absent, description="The criterion whose margin is multiplied."
    )
    schemes: tuple[SchemeFigure, ...] = Field(
        default=(),
        exclude_if=is_absent,
        description="Figures by quantization scheme, of divergences and perplexities only; value is then the ceiling "
        "that holds for every scheme. An inherited figure is changed by its scheme.",
    )

    @model_validator(mode="after")
    def _names_its_threshold(self) -> "Margin":
        if (self.beyond_margins is None) != (self.of is None):
            raise ValueError("beyond_margins and of go together: name both the multiple and the criterion")
        named = self.beyond is not None or self.of is not None
        if self.kind == "max_share" and not named:
            raise ValueError("a max_share margin names a threshold: beyond, or beyond_margins and of")
        if self.kind != "max_share" and named:
            raise ValueError(f"a {self.kind} margin has no threshold to lie beyond")
        if self.kind == "max_share" and not 0 < self.value < 1:
            raise ValueError(f"a max_share margin lies between 0 and 1, not {self.value:g}")
        return self

    @model_validator(mode="after")
    def _in_range(self) -> "Margin":
        if self.kind in ("min_recovery", "min_retention"):
            if not 0 < self.value <= 1:
                raise ValueError(f"a {self.kind} margin lies in (0, 1], not {self.value:g}")
        elif self.value < 0:
            raise ValueError(f"a {self.kind} margin is not negative, but {self.value:g} is")
        if self.against == "blessed" and self.kind in ("max_value", "max_count", "max_share"):
            raise ValueError(f"a {self.kind} margin is absolute, so it holds against nothing")
        return self

    @model_validator(mode="after")
    def _figures_lie_inside_the_ceiling(self) -> "Margin":
        named = [figure.scheme for figure in self.schemes]
        for figure in self.schemes:
            if named.count(figure.scheme) > 1:
                raise ValueError(f"scheme {figure.scheme} has more than one figure")
            alone = self.model_copy(update={"value": figure.value, "schemes": ()})
            type(self).model_validate(alone.model_dump())
            if stricter(self.kind, self.value, figure.value):
                raise ValueError(
                    f"the figure {figure.value:g} of {figure.scheme} allows more than the ceiling {self.value:g}"
                )
        return self


def stricter(kind: MarginKind, value: float, other: float) -> bool:
    """Whether a margin of that kind allows less at `value` than at `other`."""
    return value > other if kind in ("min_recovery", "min_retention") else value < other


PAIRED_KINDS: tuple[MarginKind, ...] = ("max_increase", "min_recovery")
"""Margins that compare a branch's answers with a baseline's."""


class Informative(PolicyModel):
    """The competence that the reference needs for a comparison of right and wrong answers to be evidence.

    An item is informative if the reference answers it right within its budget. A family of items is left out as a whole
    if fewer than `min_items`, or less than `min_share`, of its items are informative; the share is corrected for
    guessing, (right / items - chance) / (1 - chance). The criterion is not measured if less than `min_weight` of its
    items lie in the remaining families. All counts use the reference's answers, which precede the branch's.

    The defaults: a reference that solves less than half of a task is mostly compared where both sides fail. In a family
    with 5 informative items, a branch that lost half of the reference's right answers shows no loss 3 times in 100
    (0.5^5). A criterion may lose a fifth of its items and keep its meaning.
    """

    min_items: Whole = Field(
        default=5, ge=1, description="The fewest items of a family that the reference must answer right; 5."
    )
    min_share: Number = Field(
        default=0.5,
        gt=0,
        le=1,
        description="The smallest share of a family's items that it must answer right, above chance; 0.5.",
    )
    min_weight: Number = Field(
        default=0.8,
        gt=0,
        le=1,
        description="The smallest share of all items in the remaining families; 0.8.",
    )


class Named:
    """The names of a criterion and its result, from their own fields."""

    @property
    def heading(self: Any) -> str:
        """The display name."""
        return criterion_title(self.title, self.probe, self.metric, self.slice)

    @property
    def name(self: Any) -> str:
        """The display name with the id that commands and waivers accept."""
        return f"{self.heading} ({self.id})"

    @property
    def key(self: Any) -> str:
        """The key of the judged measurement, as `Measurement.key` writes it."""
        return f"{self.probe}.{self.metric}[{self.slice}]"


class Criterion(Named, PolicyModel):
    """One rule over one measurement.

    `min_clusters` counts effective clusters of equal size; without it, unbounded figures need 30. `estimand` has only
    one value and exists because a policy's hash covers it. The shares of the error rate apply to evidence laid out in
    blocks (`stats.LookShares`). `on_inconclusive: fail` refuses unproven results. `waivable: false` marks faults that
    no reviewer may excuse (a corrupt checkpoint, non-finite outputs). `informative` exists only for margins against a
    baseline and has defaults.
    """

    id: CriterionId = Field(description="Its name; an inherited criterion is changed by its id.")
    title: str = Field(
        default="",
        max_length=80,
        exclude_if=is_absent,
        description="What people call it; by default the metric's own label. It decides nothing.",
    )
    probe: ProbeName = Field(description="The probe that measures it.")
    metric: str = Field(min_length=1, description="The measurement, as `q36eval history show` names it.")
    slice: str = Field(default="all", description="The part of the items, such as a task; all by default.")
    margin: Margin
    lanes: tuple[Lane, ...] = Field(min_length=1, description="The lanes that it is judged for.")
    tier: Literal["blocking", "advisory"] = Field(
        default="blocking", description="Whether it decides (default) or is only shown."
    )
    confidence: Number = Field(
        default=0.975, gt=0.5, lt=1, description="One-sided, of the bound that must lie inside the margin; 0.975."
    )
    min_scored: Whole = Field(default=1, ge=1, description="The fewest scored items to judge on.")
    min_clusters: Whole | None = Field(
        default=None, ge=1, description="The fewest independent clusters (documents, draws), counted by weight."
    )
    informative: Informative | None = Field(
        default=None,
        validate_default=True,
        description="What the reference must be able to do; for margins max_increase and min_recovery alone.",
    )
    estimand: Literal["population"] = Field(
        default="population", description="The figure describes the population that its items are drawn from."
    )
    looks_share: Number = Field(
        default=0.2, gt=0, le=1, description="Share of the error rate that pays for stopping at any look; 0.2."
    )
    midway_share: Number = Field(
        default=0.4,
        ge=0,
        lt=1,
        description="Share of the error rate for one look where draws by the reference's margin end; 0.4. The rest is "
        "for the planned end.",
    )
    on_inconclusive: Literal["inconclusive", "fail"] = Field(
        default="inconclusive", description="The verdict if the evidence does not decide."
    )
    waivable: bool = Field(default=True, description="Whether a waiver may excuse it; true by default.")
    where_able: bool = Field(
        default=False,
        exclude_if=is_absent,
        description="Judge it only where the reference can do the task. Elsewhere it decides nothing, and a lane of "
        "which no such criterion is judged is NOT JUDGED.",
    )
    each_family: bool = Field(
        default=False,
        exclude_if=is_absent,
        description="Fail it also if one family of items alone is shown to exceed the margin.",
    )
    note: str = Field(default="", description="A note for readers.")

    @property
    def look_shares(self) -> LookShares:
        """The division of its error rate among the looks."""
        return LookShares(self.looks_share, self.midway_share)

    @model_validator(mode="after")
    def _shares_add_up(self) -> "Criterion":
        if self.looks_share + self.midway_share > 1:
            raise ValueError("looks_share and midway_share add up to at most 1; the rest is for the planned end")
        return self

    @field_validator("informative")
    @classmethod
    def _of_paired_margins(cls, given: Informative | None, info: ValidationInfo) -> Informative | None:
        margin: Margin | None = info.data.get("margin")
        if margin is None or margin.kind in PAIRED_KINDS:
            return given or Informative()
        if given is not None:
            raise ValueError(f"a {margin.kind} margin compares no answers, so it asks nothing of the reference")
        return None

    @model_validator(mode="after")
    def _schemes_are_named_for_distances(self) -> "Criterion":
        distance = self.margin.kind != "max_count" and metric_of(self.probe, self.metric).is_distance
        if self.margin.schemes and not distance:
            raise ValueError(
                f"criterion {self.id!r} names schemes, and {self.probe}.{self.metric} has one margin for every scheme: "
                f"only divergences and perplexities, which measure a distance and no consequence, may differ by scheme"
            )
        return self

    @field_validator("lanes")
    @classmethod
    def _lanes_differ(cls, lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
        if len(set(lanes)) != len(lanes):
            raise ValueError("a lane is named twice")
        return lanes


class PolicyHead(PolicyModel):
    """The general fields of a policy, in its file and after inheritance."""

    name: str = Field(min_length=1, description="What reports call it; never the name of a policy that it extends.")
    description: str = Field(default="", description="What it is for.")
    purpose: Purpose = Field(
        default="release",
        description="release: what passes may be released. pre-check: it finds damage, and its best answer is that it "
        "found nothing (exit 3), never a release.",
    )
    alpha: Number = Field(
        default=0.025, gt=0, lt=0.5, description="The chance of any false FAIL that Holm's correction leaves; 0.025."
    )
    required: tuple[Lane, ...] = Field(
        default=(),
        exclude_if=is_absent,
        description="Lanes that must be judged. Another lane that the reference cannot do is NOT JUDGED and decides "
        "nothing. Without it, and with --lane, every lane that is judged by the policy is required.",
    )
    max_attempts: Whole | None = Field(
        default=None,
        ge=1,
        description="How many sets of answers of one deployment may be tried for a PASS since the last one; beyond "
        "that it is INCONCLUSIVE until a reviewer signs the run. Without it any number.",
    )


class Policy(PolicyHead):
    """All criteria, and `alpha`, the chance of any false FAIL after Holm's correction.

    A pre-check's `purpose` is to find damage early: its best result is that it finds nothing, and it never approves a
    release. `max_attempts` is the number of answer sets of one deployment that may be tried for a PASS; every further
    attempt needs a reviewer's signature. None allows any number. The policy includes everything that it inherited.
    `lineage` names the policies it was built from, the oldest first.
    """

    purpose: Purpose = Field(default="release", exclude_if=is_release)
    lineage: tuple[str, ...] = ()
    criteria: tuple[Criterion, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ids_differ_and_lanes_are_guarded(self) -> "Policy":
        ids = [criterion.id for criterion in self.criteria]
        twice = sorted({identifier for identifier in ids if ids.count(identifier) > 1})
        if twice:
            raise ValueError(f"criterion id {twice[0]!r} is used more than once")
        margins = {criterion.id: criterion.margin.kind for criterion in self.criteria}
        for criterion in self.criteria:
            of = criterion.margin.of
            if of is not None and margins.get(of) not in THRESHOLD_KINDS:
                what = "is no criterion here" if of not in margins else "limits no nats per token"
                raise ValueError(f"criterion {criterion.id!r} counts in margins of {of!r}, which {what}")
        for lane in self.required:
            if lane not in self.lanes:
                raise ValueError(f"no criterion judges lane {lane.value!r}, which is required")
        guarded = {lane for criterion in self.criteria if criterion.tier == "blocking" for lane in criterion.lanes}
        for lane in self.lanes:
            if lane not in guarded:
                raise ValueError(f"no blocking criterion guards lane {lane.value!r}, so it could never pass")
        return self

    @property
    def untitled(self) -> "Policy":
        """The policy without the titles of criteria, for comparing policies: a title decides nothing."""
        return self.model_copy(update={"criteria": tuple(c.model_copy(update={"title": ""}) for c in self.criteria)})

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """The lanes that the policy judges, in the order of `Lane`."""
        named = {lane for criterion in self.criteria for lane in criterion.lanes}
        return tuple(lane for lane in Lane if lane in named)

    def for_lanes(self, lanes: Collection[Lane]) -> "Policy":
        """The policy limited to these lanes, all of them required; unchanged if `lanes` is empty.

        Raises:
            UsageError: the policy cannot be limited to these lanes.
        """
        if not lanes:
            return self
        whole = self.model_copy(update={"required": ()})
        if set(self.lanes) <= set(lanes):
            return whole
        narrowed = [c.model_dump() | {"lanes": [lane for lane in c.lanes if lane in lanes]} for c in self.criteria]
        try:
            chosen = {"criteria": [each for each in narrowed if each["lanes"]]}
            return Policy.model_validate(whole.model_dump() | chosen)
        except ValidationError as error:
            raise UsageError(
                "lane-not-judged",
                f"Policy {self.name} judges {' and '.join(self.lanes)}, and cannot judge {' and '.join(lanes)} alone; "
                f"name another --lane or --policy.",
            ) from error
