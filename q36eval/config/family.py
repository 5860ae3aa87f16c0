"""A family: a base model and its published branches, described in a YAML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from q36eval.config.answer_budgets import Answering, Written
from q36eval.errors import UsageError
from q36eval.files import read_yaml
from q36eval.records import Lane

ToolFormat = Literal["qwen3_xml", "hermes", "llama_json", "mistral", "harmony"]
"""How a family of models writes a tool call, as its chat template demands: `<function=NAME>` with `<parameter=KEY>`
(servers know it under two names, `qwen3_xml` and `qwen3_coder`), or JSON after different marks."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Source(Written):
    """Where a branch's files are: a folder, or a repository and revision of a hub.

    A relative folder is looked for beside the family's file, then where `data/` lies.
    """

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


class Fact(Written):
    """What a card says of how its branch is served; quoted for people."""

    what: str
    value: str
    source: str


class Stored(Written):
    """How a branch's card says that some tensors are stored: what it is held to.

    `tensors` is a class of tensor as `q36eval inspect` names it (`linear attention`, `router gates`, `routed experts`,
    `shared expert`, `self-attention`, `lm_head`, `embeddings`), or a glob of tensor names; `stored` is `unquantized`,
    or a scheme such as `NVFP4`, `FP8`, `FP8_BLOCK` or `INT4`.
    """

    tensors: str
    stored: str
    source: str


class Shipped(Written):
    """What a branch ships beside the text model, by its card: then it is there, whole, and the reference's.

    `stored` is `unquantized`, or a word for how it is quantized, in which no probe judges it; `says` is for people.
    """

    part: Literal["mtp", "vision"]
    stored: str = "unquantized"
    says: str = ""
    source: str


class OwnTemplate(Written):
    """A chat template that differs from the reference's on purpose: the hash of all that the branch ships, as
    `q36eval inspect` prints it, and why, or who says so."""

    sha256: Sha256
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
    stores: tuple[Stored, ...] = ()
    ships: tuple[Shipped, ...] = ()
    chat_template: OwnTemplate | None = None
    serving: tuple[Fact, ...] = ()
    """With what its card serves it: engine and version, parsers, patches, dtypes of states."""
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


class ChatTemplate(Written):
    """What the models' chat template writes. `q36eval.chat.template_abilities` finds it by rendering."""

    present: bool = True
    system: bool = True
    """A system message; without it, its text is put at the head of the first user message."""
    tools: bool = True
    """The offered tools, with the names of their parameters."""
    results: bool = True
    """Earlier tool calls, also two in a turn, with their results."""
    thinking: Literal["switch", "always", "never"] = "switch"
    """Whether `enable_thinking` switches reasoning on and off."""
    trouble: str = ""
    """Why one that is there cannot be used; then it is not `present`."""


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
    tool_format: ToolFormat | None = "qwen3_xml"
    """How the chat template writes tool calls; None where it writes none, or in a format that is not parsed."""
    template: ChatTemplate = ChatTemplate()
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
        return read_yaml(path, cls, "family file")

    def lanes_of(self, name: str, chosen: Sequence[Lane] | None = None) -> Sequence[Lane]:
        """The lanes that a branch must pass: those `chosen`, else the branch's own; none where neither names any."""
        known = self.branches.get(name)
        return chosen or (known.lanes if known else ())

    def branch(self, name: str) -> Branch:
        """The branch of that alias.

        Raises:
            UsageError: no such branch; lists the valid names.
        """
        if name not in self.branches:
            raise UsageError(
                "branch-unknown",
                f"The family {self.name} has no branch {name!r}; its branches are: {', '.join(self.branches)}.",
            )
        return self.branches[name]
