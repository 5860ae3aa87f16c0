"""What a policy file may say: a whole policy, or what one changes of another. Every unknown key is refused."""

from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, Strict, TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic refuses that of typing before Python 3.12

from q36eval.gate.policy import CriterionId, PolicyModel, Purpose
from q36eval.records import Lane, ProbeName
from q36eval.stats import MarginKind

TITLE = "q36eval policy"

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Number = Annotated[float, Strict()]
"""Neither a boolean nor a string, which would be read as 1 or as what it spells; an integer is fine."""
Whole = Annotated[int, Strict()]
"""The same, of integers."""


@with_config(_STRICT)
class SchemePart(TypedDict, total=False):
    """The figure that is accepted for one quantization scheme; of an inherited one only what changes."""

    scheme: Required[
        Annotated[
            str,
            Field(
                min_length=1,
                description="As inspection finds it, such as NVFP4, FP8_BLOCK, W4A16; or exactly a mixture of them, "
                "NVFP4 + FP8_BLOCK. A mixture without a figure takes the strictest of its parts'.",
            ),
        ]
    ]
    value: Annotated[
        Number, Field(ge=0, description="In the terms of the margin; never beyond its value, the ceiling.")
    ]
    source: Annotated[
        str, Field(min_length=1, description="Where the figure comes from; one that is changed brings its own.")
    ]


@with_config(_STRICT)
class MarginPart(TypedDict, total=False):
    """How much may be lost, and where that figure comes from."""

    kind: Annotated[
        MarginKind,
        Field(
            description="max_value: the figure itself. max_increase: so much worse than the baseline. min_recovery: "
            "branch / baseline of a score. min_retention: perplexity of the baseline / of the branch. max_count: how "
            "many may be counted. max_share: which share of the independent clusters may lie beyond a threshold."
        ),
    ]
    value: Annotated[Number, Field(ge=0, description="In the metric's unit; a ratio for recovery and retention.")]
    against: Annotated[
        Literal["reference", "blessed"],
        Field(description="The baseline: the reference (default), or the run that the branch was last blessed with."),
    ]
    beyond: Annotated[Number, Field(gt=0, description="Of max_share: the threshold, in nats per token or unit.")]
    beyond_margins: Annotated[
        Number, Field(gt=0, description="Of max_share: the threshold as so many margins of the criterion `of`.")
    ]
    of: Annotated[CriterionId, Field(description="The criterion whose margin `beyond_margins` counts in.")]
    source: Annotated[
        str, Field(min_length=1, description="Where the value comes from; a value that is changed brings its own.")
    ]
    schemes: Annotated[
        tuple[SchemePart, ...],
        Field(
            description="Figures by quantization scheme, of divergences and perplexities only; value is then the "
            "ceiling that holds for every scheme. An inherited figure is changed by its scheme."
        ),
    ]


@with_config(_STRICT)
class InformativePart(TypedDict, total=False):
    """What the reference must be able to do, for a comparison of answers that are right or wrong to be evidence."""

    min_items: Annotated[
        Whole, Field(ge=1, description="The least items of a family that the reference answers right; 5.")
    ]
    min_share: Annotated[
        Number,
        Field(gt=0, le=1, description="The least share of a family's items that it answers right, above chance; 0.5."),
    ]
    min_weight: Annotated[
        Number,
        Field(gt=0, le=1, description="The least share of all items that lie in the families that remain; 0.8."),
    ]


@with_config(_STRICT)
class CriterionPart(TypedDict, total=False):
    """One rule over one measurement; of an inherited criterion only what changes."""

    id: Required[Annotated[CriterionId, Field(description="Its name; an inherited criterion is changed by its id.")]]
    title: Annotated[
        str,
        Field(max_length=80, description="What people call it; by default the metric's own label. It decides nothing."),
    ]
    probe: Annotated[ProbeName, Field(description="The probe that measures it.")]
    metric: Annotated[str, Field(min_length=1, description="The measurement, as `q36eval history show` names it.")]
    slice: Annotated[str, Field(description="The part of what was asked; all by default.")]
    margin: MarginPart
    lanes: Annotated[tuple[Lane, ...], Field(min_length=1, description="The kinds of use that it is judged for.")]
    tier: Annotated[
        Literal["blocking", "advisory"], Field(description="Whether it decides (default), or is shown beside it.")
    ]
    confidence: Annotated[
        Number, Field(gt=0.5, lt=1, description="One-sided, of the bound that must lie inside the margin; 0.975.")
    ]
    min_scored: Annotated[Whole, Field(ge=1, description="The least items to judge on.")]
    min_clusters: Annotated[
        Whole | None, Field(ge=1, description="The least independent clusters (documents, draws), counted by weight.")
    ]
    informative: Annotated[
        InformativePart | None,
        Field(description="What the reference must be able to do; for margins max_increase and min_recovery alone."),
    ]
    estimand: Annotated[
        Literal["population"], Field(description="What a figure is of: the population that its items stand for.")
    ]
    looks_share: Annotated[
        Number, Field(gt=0, le=1, description="Share of the error rate that pays for stopping at any look; 0.2.")
    ]
    midway_share: Annotated[
        Number,
        Field(
            ge=0,
            lt=1,
            description="Share of the error rate for one look where draws by the reference's margin end; 0.4. The rest "
            "is for the planned end.",
        ),
    ]
    on_inconclusive: Annotated[
        Literal["inconclusive", "fail"], Field(description="What it is where the evidence does not decide.")
    ]
    waivable: Annotated[bool, Field(description="Whether a reviewer may excuse it; true by default.")]
    note: Annotated[str, Field(description="For whoever reads it.")]


class PolicyFile(PolicyModel):
    """A policy file of q36eval: which measurements decide about a release, by which margin, for which lane."""

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
    max_attempts: Whole | None = Field(
        default=None,
        ge=1,
        description="How many sets of answers of one deployment may be tried for a PASS; beyond that a PASS is "
        "INCONCLUSIVE until a reviewer signs the run. Without it any number.",
    )
    extends: str | None = Field(
        default=None,
        min_length=1,
        description="A shipped policy by its name, or a policy file (.yaml) relative to this one: its criteria are "
        "inherited, and changed by what this file says of them.",
    )
    drop: tuple[str, ...] = Field(default=(), description="Ids of inherited criteria that are not judged.")
    criteria: tuple[CriterionPart, ...] = ()


KEYS: dict[type[Any], tuple[str, ...]] = {
    SchemePart: tuple(SchemePart.__annotations__),
    MarginPart: tuple(MarginPart.__annotations__),
    InformativePart: tuple(InformativePart.__annotations__),
    CriterionPart: tuple(CriterionPart.__annotations__),
    PolicyFile: tuple(PolicyFile.model_fields),
}
"""The keys of each level, for messages."""


def policy_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a policy file, for editors: its keys and their values one by one.

    What a kind of margin demands, and what inheritance gives, is beyond it.
    """
    schema = _untitled(TypeAdapter(PolicyFile).json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": TITLE, **schema}


def _untitled(schema: Any) -> Any:
    """Without the titles that only repeat a key's name."""
    if isinstance(schema, list):
        return [_untitled(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(entry) for key, entry in schema.items() if key != "title" or not isinstance(entry, str)}
