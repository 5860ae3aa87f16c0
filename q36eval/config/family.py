"""A family: a base model and its published branches, described in a YAML file."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from q36eval.config.answering import Answering, Written
from q36eval.config.unique_keys import UniqueKeyLoader
from q36eval.errors import UsageError
from q36eval.records import Lane

ToolFormat = Literal["qwen3_xml", "hermes"]
"""How a family of models writes a tool call, as its chat template demands: `<function=NAME>` with `<parameter=KEY>`, or
JSON. Servers know the former under two names, `qwen3_xml` and `qwen3_coder`."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class Source(Written):
    """Where a branch's files are: a folder (relative to the repository), or a repository and revision of a hub."""

    path: str | None = None
    repository: str | None = None
    revision: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.path is None) == (self.repository is None):
            raise ValueError("give either path, or repository and revision")
        return self

    def __str__(self) -> str:
        return self.path or f"{self.repository}@{self.revision or 'main'}"


class Figure(Written):
    """A published figure with its source; quoted for people, never used as a measurement."""

    metric: str
    value: str
    source: str


class Branch(Written):
    """One published checkpoint revision under an alias that is unique within the family."""

    source: Source
    description: str
    scheme: str
    lanes: tuple[Lane, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ("auto",)
    size_gib: float | None = None
    checkpoint_sha256: str | None = None
    """As `q36eval.checkpoints.checkpoint_sha256` gives it: what a pack of it must have been captured from."""
    built_on_first_use: bool = False
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


class Family(Written):
    """A base model, its reference and its branches."""

    name: str
    base_model: str
    architectures: tuple[str, ...]
    context_length: Annotated[int, Field(gt=0)]
    reference: str
    suite: str
    policy: str
    branches: dict[str, Branch]
    skills: tuple[str, ...] = ()
    """Skills beyond what every model here has learnt; canaries marked `only_where_declared` run only where listed."""
    answers: Answering = Answering()
    """Budgets and sampling of canaries."""
    tool_format: ToolFormat = "qwen3_xml"
    """How the chat template writes tool calls."""
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _reference_is_a_branch(self) -> Self:
        if self.reference not in self.branches:
            raise ValueError(f"reference {self.reference!r} is not one of the branches: {', '.join(self.branches)}")
        return self

    @model_validator(mode="after")
    def _budgets_fit(self) -> Self:
        if self.answers.largest >= self.context_length:
            problem = f"answers: a budget of {self.answers.largest} tokens leaves no room for a prompt"
            raise ValueError(f"{problem} in a context of {self.context_length}")
        return self

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a family file.

        Raises:
            UsageError: the file is missing or malformed, with the key that is wrong.
        """
        return load_yaml(path, cls, "family file")

    def branch(self, name: str) -> Branch:
        """The branch of that alias.

        Raises:
            UsageError: no such branch; lists the valid names.
        """
        if name not in self.branches:
            raise UsageError(
                f"The family {self.name} has no branch {name!r}; its branches are: {', '.join(self.branches)}."
            )
        return self.branches[name]


def load_yaml(path: Path, model: type[ModelT], what: str) -> ModelT:
    """Validate a YAML file a person wrote; every problem becomes one sentence that names file and key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"There is no {what} {path}; check the path.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The {what} {path} cannot be read: {error}.") from error
    try:
        body: Any = yaml.load(text, Loader=UniqueKeyLoader)
        return model.model_validate(body)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UsageError(f"The {what} {where} is not YAML: {getattr(error, 'problem', error)}.") from error
    except ValidationError as error:
        raise UsageError(f"The {what} {path} is wrong at {_first_problem(error, model)}.") from error
    except (TypeError, ValueError, RecursionError) as error:  # a 31 February, for one; a ValidationError is one too
        raise UsageError(f"The {what} {path} is not YAML: {type(error).__name__}: {error}.") from error


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"]) or "the top level"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key; valid keys there are {', '.join(_keys_at(model, problem['loc'][:-1]))}"
    return f"{where}: {message}"


def _keys_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Field names of the model reached by `loc`, as far as annotations can be followed."""
    from typing import get_args

    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel) and part in current.model_fields:
            current = current.model_fields[part].annotation
        while not isinstance(current, type) or not issubclass(current, BaseModel):
            nested = [argument for argument in get_args(current) if argument is not str]
            if not nested:
                return []
            current = nested[0]
    return list(current.model_fields)
