"""The definition of a canary: one YAML file each, checked when it is read."""

import inspect
import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError, model_validator

from q36eval.canaries.checks import CHECKS, NotJudgedError, check_json_value, check_tools, run_checks
from q36eval.canaries.generators import GENERATORS
from q36eval.config import Family as ModelFamily
from q36eval.config import SamplingSettings
from q36eval.errors import UsageError
from q36eval.examples import draw
from q36eval.files import read_yaml
from q36eval.records import Lane

FEW, MANY, STANDARD_DRAWS = 60, 200, 20
"""`FEW` shows a broken skill; 0 failures of `MANY` bound the failure rate below 1.9 % (Clopper-Pearson, 97.5 %).
`STANDARD_DRAWS` of every family of the set `standard` take a model of 135 million parameters minutes on a CPU."""

DRAWS = {"release": MANY, "extended": MANY, "sandbox": 40}
"""By suite, where it is not `FEW`. With the sandbox's 40, up to 2 % fewer branches without loss pass than with 60."""

STANDARD = "standard"
"""The set of canaries in English for any model; a suite file names it under `canaries`."""


def draws_per_family(suite: str, named: str | None = None) -> int:
    """Draws of every family in `suite`, named as on the command line (`NAME`, `NAME=DIR` or a file).

    A custom suite file uses the number of the quick one. `named` is the suite's set of canaries.
    """
    if named == STANDARD:
        return STANDARD_DRAWS
    return DRAWS.get(suite.partition("=")[0], FEW)


ROLES = ("system", "user", "assistant", "tool")
"""Roles of messages in a conversation."""

SPECS_FOLDER = Path(__file__).parent / "specs"
"""The canaries that ship."""

_READ = frozenset(key for check in CHECKS.values() for key in check.keys)
"""The keys of expected values. A key of other checks is allowed, any other is an error."""


class _Written(BaseModel):
    """Base of the models for files that a person writes: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GenerationSettings(_Written):
    """How the answer is generated. The answer must end within `max_new_tokens`, reasoning included.

    Where `decoding` is sampled, each prompt is answered once for each of the `sampling`'s seeds.
    """

    decoding: Literal["greedy", "sampled"] = "greedy"
    enable_thinking: StrictBool = False
    max_new_tokens: Annotated[int, Field(ge=1, le=131_072)]
    sampling: SamplingSettings | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "GenerationSettings":
        if (self.sampling is not None) != (self.decoding == "sampled"):
            raise ValueError("give sampling if decoding is sampled, and only then")
        return self


class FixedPrompt(_Written):
    """One fixed prompt. `key` is its content in a generator's form, which keeps it out of training draws.

    `answer` is an answer that passes, shown to reviewers next to the models' answers.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    key: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    expected: dict[str, Any]
    answer: str

    @model_validator(mode="after")
    def _consistent(self) -> "FixedPrompt":
        check_messages(self.messages)
        for what, values in (("messages", self.messages), ("tools", self.tools), ("expected", self.expected)):
            check_json_value(values, what)
        check_tools(self.tools)
        return self


class Family(_Written):
    """`n` distinct draws of a generator on the test side of the split; a suite may ask for another number.

    `share` is the part of the suite's number that this family takes, where two canaries halve it between them.
    `settings` are the generator's own, such as the length of a context.
    """

    generator: str
    seed: int
    n: Annotated[int, Field(ge=1, le=100_000)] = FEW
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    split: Literal["test"] = "test"
    settings: dict[str, int | str] = {}

    @model_validator(mode="after")
    def _known_generator(self) -> "Family":
        if self.generator not in GENERATORS:
            raise ValueError(f"no generator is called {self.generator!r}; there are {', '.join(GENERATORS)}")
        known = list(inspect.signature(GENERATORS[self.generator]).parameters)[1:]
        for name in self.settings:
            if name not in known:
                offered = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"{self.generator} has no setting {name!r}; {offered}")
        return self


class CanarySpec(_Written):
    """One canary: its prompts, its generation settings, and its checks.

    A canary is either fixed (`must_pass`) or a `family` (its failure rate is estimated). The prompts of a fixed one are
    judged as a rate too, unless it is `absolute`: then one confirmed flip is a fault. One that is `only_where_declared`
    applies only to a family of models that lists its skill; one with a `context` only to models with at least that many
    tokens.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    skill: str
    only_where_declared: StrictBool = False
    absolute: StrictBool = False
    context: Annotated[int, Field(ge=0, exclude=True)] = 0  # not hashed: the question is the same
    lanes: Annotated[list[Lane], Field(min_length=1)]
    why: Annotated[str, Field(min_length=1)]
    generation: GenerationSettings
    checks: Annotated[list[str], Field(min_length=1)]
    must_pass: Annotated[list[FixedPrompt], Field(min_length=1)] | None = None
    family: Family | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "CanarySpec":
        unknown = [name for name in self.checks if name not in CHECKS]
        if unknown:
            raise ValueError(f"no check is called {unknown[0]!r}; there are {', '.join(CHECKS)}")
        if (self.must_pass is None) == (self.family is None):
            raise ValueError("give exactly one of must_pass and family")
        if self.must_pass is not None and self.generation.sampling is not None:
            raise ValueError("must_pass: fixed prompts are answered greedily; a family may be sampled")
        if self.absolute and self.must_pass is None:
            raise ValueError("absolute: only fixed prompts (must_pass) can be required")
        known: list[FixedPrompt] = []
        for prompt in self.must_pass or []:
            self._check_prompt(prompt)
            _check_other(prompt, known)
            known.append(prompt)
        return self

    def _check_prompt(self, prompt: FixedPrompt) -> None:
        try:
            failures = run_checks(prompt.answer, self.checks, prompt.expected, prompt.tools)
        except ValidationError as error:
            raise ValueError(f"must_pass {prompt.name!r}: {unusable(error)}") from error
        except NotJudgedError as error:
            raise ValueError(f"must_pass {prompt.name!r}: {error}") from error
        if failures:
            raise ValueError(f"must_pass {prompt.name!r}: its own answer fails its checks: {failures[0].message}")
        unread = next((key for key in prompt.expected if key not in _READ), None)
        if unread is not None:
            raise ValueError(f"must_pass {prompt.name!r}: expected.{unread}: no check reads this key")


def unusable(error: ValidationError) -> str:
    """The expected value that a check lacks or cannot use, and the reason."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in ("expected", *first["loc"]))
    return f"{place}: {first['msg'].removeprefix('Value error, ')}"


def _check_other(prompt: FixedPrompt, others: Sequence[FixedPrompt]) -> None:
    """Outcomes are identified by name, and paired by question."""
    for other in others:
        if other.name == prompt.name:
            raise ValueError(f"two prompts are called {prompt.name!r}; rename one of them")
        if (other.messages, other.tools, other.expected) == (prompt.messages, prompt.tools, prompt.expected):
            raise ValueError(f"the prompts {other.name!r} and {prompt.name!r} are identical; remove one")


def check_messages(messages: list[dict[str, Any]]) -> None:
    """Every message has a known role and text; earlier tool calls carry their arguments as a mapping.

    Qwen's chat templates iterate over a call's arguments, so arguments as a JSON string would not render.

    Raises:
        ValueError: what is wrong, by the message's number.
    """
    for number, message in enumerate(messages, 1):
        role, calls = message.get("role"), message.get("tool_calls")
        if role not in ROLES:
            raise ValueError(f"message {number} has the role {role!r}; there are {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"message {number} has no text under content")
        if calls is not None and not isinstance(calls, list):
            raise ValueError(f"message {number} has tool_calls that are not a list")
        for call in calls or ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError(f"message {number} has a tool call without a name")
            if not isinstance(function.get("arguments"), dict):
                raise ValueError(f"message {number}: the arguments of {function['name']!r} must be a mapping")
    _check_order([message["role"] for message in messages])


def _check_order(roles: list[str]) -> None:
    """Orders that Qwen's templates refuse, though the sandbox's may render them: a late system message, no question."""
    if "system" in roles[1:]:
        late = roles.index("system", 1) + 1
        raise ValueError(f"message {late} is a system message; Qwen's templates take one only as the first")
    if "user" not in roles:
        raise ValueError("no message has the role user, so there is nothing to answer")
    if roles[-1] == "assistant":
        raise ValueError("the last message has the role assistant; remove it, since the model is to answer")


def load_specs(
    *,
    own: Path | None = None,
    only: Collection[str] | None = None,
    n: int | None = None,
    skills: Collection[str] | None = (),
    named: str | None = None,
    context: int | None = None,
) -> list[CanarySpec]:
    """Read the shipped canaries of a set and every `*.yaml` in `own`, in order of file name.

    Args:
        own: a person's own canaries, asked in addition to the shipped ones.
        only: ids to keep.
        n: draws of every family, instead of what its file says; of one that has a `share`, that part of them.
        skills: what the family of models declares; what runs only where it is declared is left out without it (see
            `left_out`). None keeps every canary.
        named: the set: a folder in `specs`; None is the Czech and English one.
        context: tokens that the models have; canaries that need more are left out. None keeps every canary.

    Raises:
        UsageError: an unknown set, no files, a file that is not a valid specification, an id used twice, an unknown id
            in `only`, or one that the declared skills leave out.
    """
    shipped = _shipped(named)
    specs = dict(shipped) if own is None else _read_folder(own, shipped)
    unknown = sorted(set(only or ()) - set(specs))
    if unknown:
        raise UsageError("canary-unknown", f"There is no canary {unknown[0]!r}; choose from {', '.join(specs)}.")
    chosen = [spec for spec in specs.values() if only is None or spec.id in only]
    lacking = {spec.id: spec for spec in left_out(chosen, skills)}
    if only is not None and lacking:
        spec = next(iter(lacking.values()))
        raise UsageError(
            "canary-not-of-family",
            f"The canary {spec.id} runs only on a family whose file lists {spec.skill!r} under skills.",
        )
    chosen = [spec for spec in chosen if spec.id not in lacking and (context is None or spec.context <= context)]
    return chosen if n is None else [_resized(spec, n) for spec in chosen]


REASONING_TOKENS = 2048
"""The additional budget if a model always reasons first and its family sets none."""


def for_family(specs: Iterable[CanarySpec], models: ModelFamily) -> list[CanarySpec]:
    """The canaries that suit a family of models (see `why_not_asked`), with its budgets and sampling.

    Raises:
        UsageError: a budget for a skill that no canary has.
    """
    specs, answers = list(specs), models.answers
    if answers.budgets:
        known = {spec.skill for spec in (*_shipped().values(), *_shipped(STANDARD).values(), *specs)}
        unknown = [skill for budget in answers.budgets for skill in budget.skills if skill not in known]
        if unknown:
            raise UsageError(
                "skill-unknown",
                f"The family file sets a budget for {unknown[0]!r}, a skill that no canary has; choose from "
                f"{', '.join(sorted(known))}.",
            )
    asked = [spec for spec in specs if why_not_asked(spec, models) is None]
    return [spec.model_copy(update={"generation": _generation_for(spec, models)}) for spec in asked]


def why_not_asked(spec: CanarySpec, models: ModelFamily) -> str | None:
    """The feature missing from a family's chat template for a canary; None if nothing is missing."""
    template = models.template
    if not template.present:
        return f"cannot be used ({template.trouble})" if template.trouble else "is missing"
    if spec.generation.enable_thinking and template.thinking == "never":
        return "has no switch for reasoning"
    if template.tools and template.results and models.tool_format is not None:
        return None
    messages, tools = _asked_first(spec)
    if tools and not template.tools:
        return "does not write the offered tools"
    if tools and models.tool_format is None:
        return "writes tool calls in a format that is not parsed"
    if not template.results and any(message["role"] == "tool" for message in messages):
        return "does not write earlier tool calls with their results"
    return None


def not_judged(specs: Iterable[CanarySpec], models: ModelFamily) -> tuple[str, ...]:
    """For people: the canaries not judged because of a family's chat template, and changes to others."""
    reasons: dict[str, list[str]] = {}
    for spec in specs:
        if (reason := why_not_asked(spec, models)) is not None:
            reasons.setdefault(reason, []).append(spec.id)
    sentences = [
        f"Not judged, since the chat template of {models.name} {reason}: {len(ids)} canaries ({', '.join(ids)})."
        for reason, ids in reasons.items()
    ]
    if models.template.present and not models.template.system:
        role = f"The chat template of {models.name} has no system role"
        sentences.append(f"{role}: system messages are put at the head of the first user message.")
    if models.template.thinking == "always":
        sentences.append(f"{models.name} always reasons first: its canaries have a larger budget of tokens.")
    return tuple(sentences)


def _asked_first(spec: CanarySpec) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]:
    """Messages and tools of the first question; the others of a canary are of the same kind."""
    if spec.family is None:
        prompt = (spec.must_pass or [])[0]
        return prompt.messages, prompt.tools
    generator = partial(GENERATORS[spec.family.generator], **spec.family.settings)
    example = draw(generator, random.Random(spec.family.seed), spec.family.split)
    return example.messages, example.tools


@cache
def _shipped(named: str | None = None) -> Mapping[str, CanarySpec]:
    """The shipped canaries of a set by id, read once: every check reads its own answers, which takes seconds."""
    folder = SPECS_FOLDER / (named or "")
    if not folder.is_dir():
        raise UsageError("canaries-unknown", f"There is no set of canaries {named!r}; the set is {STANDARD}, or none.")
    return MappingProxyType(_read_folder(folder, {}))


def _generation_for(spec: CanarySpec, models: ModelFamily) -> GenerationSettings:
    settings, thinking = spec.generation, models.answers.thinking
    tokens = models.answers.tokens_of(spec.skill)
    if models.template.thinking == "always" and not settings.enable_thinking:
        reasoning = REASONING_TOKENS if thinking is None else thinking.tokens
        budget = min((tokens or settings.max_new_tokens) + reasoning, models.context_length // 2)
        return settings.model_copy(update={"enable_thinking": True, "max_new_tokens": budget})
    if settings.enable_thinking and thinking is not None:
        tokens = thinking.tokens
        if settings.sampling is not None and thinking.sampling is not None:
            settings = settings.model_copy(update={"sampling": thinking.sampling})
    return settings if tokens is None else settings.model_copy(update={"max_new_tokens": tokens})


def left_out(specs: Iterable[CanarySpec], skills: Collection[str] | None) -> list[CanarySpec]:
    """Those of `specs` that need a declared skill missing from `skills`."""
    if skills is None:
        return []
    return [spec for spec in specs if spec.only_where_declared and spec.skill not in skills]


def left_out_sentence(specs: Iterable[CanarySpec], family: str) -> str:
    """One sentence for people: the canaries left out for that family, by skill, and the reason."""
    absent = list(specs)
    skills = ", ".join(dict.fromkeys(spec.skill for spec in absent))
    what = "1 canary is" if len(absent) == 1 else f"{len(absent)} canaries are"
    return f"{what} not run, since the family {family} does not declare: {skills} (see q36eval canaries list)."


def read_spec(file: Path) -> CanarySpec:
    """Read one specification. Aliases are refused, since reviewers read a canary in its final form.

    Raises:
        UsageError: unreadable, not YAML, or a key that is unknown, missing or wrong; file and key are named.
    """
    return read_yaml(file, CanarySpec, "canary", aliases=False)


def _read_folder(folder: Path, known: Mapping[str, CanarySpec]) -> dict[str, CanarySpec]:
    """`known` plus the canaries in `folder`, by id."""
    if folder.is_file():
        raise UsageError("path-is-file", f"{folder} is a file; name the folder that contains it.")
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise UsageError(
            "canaries-missing", f"There is no canary specification (*.yaml) in {folder}; name a folder that has one."
        )
    specs = dict(known)
    for file in files:
        spec = read_spec(file)
        if spec.id in specs:
            raise UsageError(
                "canary-duplicate", f"{file}: the id {spec.id!r} is already used by another file; rename one of them."
            )
        specs[spec.id] = spec
    return specs


def _resized(spec: CanarySpec, n: int) -> CanarySpec:
    if spec.family is None:
        return spec
    draws = math.ceil(spec.family.share * n)
    return spec.model_copy(update={"family": spec.family.model_copy(update={"n": draws})})
