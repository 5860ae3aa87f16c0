"""What a canary is: one YAML file each, checked when it is read."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from canaries.checks import CHECKS, run_checks
from canaries.generators import GENERATORS
from q36eval.errors import UsageError
from q36eval.records import Lane

SPECS_FOLDER = Path(__file__).parent / "specs"
"""The canaries that ship."""


class _Written(BaseModel):
    """Base of what a person writes: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GenerationSettings(_Written):
    """How the answer is generated. The answer must end within `max_new_tokens`, reasoning included."""

    decoding: Literal["greedy"] = "greedy"
    enable_thinking: bool = False
    max_new_tokens: Annotated[int, Field(ge=1, le=32_768)]


class FixedPrompt(_Written):
    """One fixed prompt. `key` is its content as a generator would name it, which keeps it out of training draws.

    `answer` is an answer that passes, shown to reviewers beside what the models said.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    key: str
    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    tools: list[dict[str, Any]] = []
    expected: dict[str, Any]
    answer: str


class Family(_Written):
    """`n` distinct draws of a generator on the test side of the split."""

    generator: str
    seed: int
    n: Annotated[int, Field(ge=1, le=100_000)]
    split: Literal["test"] = "test"

    @model_validator(mode="after")
    def _known_generator(self) -> "Family":
        if self.generator not in GENERATORS:
            raise ValueError(f"no generator is called {self.generator!r}; there are {', '.join(GENERATORS)}")
        return self


class CanarySpec(_Written):
    """One canary: what is asked, how it is generated, and by which checks it is judged.

    A canary is either fixed (`must_pass`: one flip is a fault) or a `family` (its failure rate is estimated).
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    skill: str
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
        for prompt in self.must_pass or []:
            self._check_prompt(prompt)
        return self

    def _check_prompt(self, prompt: FixedPrompt) -> None:
        try:
            failures = run_checks(prompt.answer, self.checks, prompt.expected, prompt.tools)
        except ValidationError as error:
            place, problem = _first_problem(error)
            raise ValueError(f"must_pass {prompt.name!r}: expected.{place}: {problem}") from error
        if failures:
            raise ValueError(f"must_pass {prompt.name!r}: its own answer fails, {failures[0].message}")


def load_specs(
    directory: Path | None = None, *, only: Collection[str] | None = None, n: int | None = None
) -> list[CanarySpec]:
    """Read every `*.yaml` in `directory` (the shipped canaries if None), in order of file name.

    Args:
        directory: where the specifications are.
        only: ids to keep; all when None.
        n: draws per family instead of what the files say.

    Raises:
        UsageError: no files, a file that is not a valid specification, an id used twice, or an unknown id in `only`.
    """
    folder = SPECS_FOLDER if directory is None else directory
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise UsageError(f"There is no canary specification (*.yaml) in {folder}; name a folder that has some.")
    specs: dict[str, CanarySpec] = {}
    for file in files:
        spec = read_spec(file)
        if spec.id in specs:
            raise UsageError(f"{file}: the id {spec.id!r} is already used by another file; rename one of them.")
        specs[spec.id] = spec
    unknown = sorted(set(only or ()) - set(specs))
    if unknown:
        raise UsageError(f"There is no canary {unknown[0]!r}; choose from {', '.join(specs)}.")
    chosen = [spec for spec in specs.values() if only is None or spec.id in only]
    return chosen if n is None else [_resized(spec, n) for spec in chosen]


def read_spec(file: Path) -> CanarySpec:
    """Read one specification.

    Raises:
        UsageError: unreadable, not YAML, or a key that is unknown, missing or wrong; file and key are named.
    """
    try:
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); check the path and its encoding.") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(written, dict):
        raise UsageError(f"{file} must hold one mapping with the keys {', '.join(CanarySpec.model_fields)}.")
    try:
        return CanarySpec.model_validate(written)
    except ValidationError as error:
        place, problem = _first_problem(error)
        raise UsageError(f"{file}: {place}: {problem}; correct it.") from error


def _resized(spec: CanarySpec, n: int) -> CanarySpec:
    if spec.family is None:
        return spec
    return spec.model_copy(update={"family": spec.family.model_copy(update={"n": n})})


def _first_problem(error: ValidationError) -> tuple[str, str]:
    """The key and what is wrong with it."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        return place, "unknown key"
    if first["type"] == "missing":
        return place, "missing"
    return place, first["msg"].removeprefix("Value error, ").rstrip(".")
