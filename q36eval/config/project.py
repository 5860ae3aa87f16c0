"""The project file: what a repository that releases branches says once, for every command that runs in it."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, model_validator

from q36eval.config.answer_budgets import Written
from q36eval.config.family import Sha256
from q36eval.errors import UsageError
from q36eval.files import read_yaml
from q36eval.records import Lane

PROJECT_FILE = "q36eval.yaml"

OTHER_PYTHON = "engine_python"
"""The one engine argument that neither a project file nor a run's record may give: it would run a program of their
choice."""


class Project(Written):
    """Defaults of the commands that run in a folder or below it; the command line wins over each.

    Relative paths count from the file. A folder is written `./folder`, so that it is never taken for a name.
    """

    family: Annotated[str, Field(min_length=1)] | None = None
    reference: Annotated[str, Field(min_length=1)] | None = None
    reference_pack: Annotated[str, Field(min_length=1)] | None = None
    policy: Annotated[str, Field(min_length=1)] | None = None
    suite: Annotated[str, Field(min_length=1)] | None = None
    lanes: tuple[Lane, ...] = ()
    chat_template: Sha256 | None = None
    """Hash of the chat template that branches without an entry in a family's file ship on purpose."""
    device: Annotated[str, Field(min_length=1)] | None = None
    engine: Annotated[str, Field(min_length=1)] | None = None
    engine_arguments: tuple[str, ...] = ()
    """Each `NAME=VALUE`, as for `--engine-arg`."""
    history: Annotated[str, Field(min_length=1)] | None = None
    out: Annotated[str, Field(min_length=1)] | None = None

    _file: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _one_reference(self) -> Self:
        if self.reference is not None and self.reference_pack is not None:
            raise ValueError("give either reference or reference_pack")
        return self

    @property
    def file(self) -> Path | None:
        """Where it was read; None where no project file exists."""
        return self._file

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a project file; its paths are absolute afterwards.

        Raises:
            UsageError: the file is malformed, with the key that is wrong.
        """
        project, named = read_yaml(file, cls, "project file", aliases=False), ""
        if project.reference is not None and _checkpoint_in(file.parent, project.reference) == project.reference:
            named = project.reference
        if named and not os.path.isabs(named) and os.path.isdir(file.parent / named):
            raise UsageError(
                "file-invalid",
                f"The project file {file} is wrong at reference: {named} is a folder there; write ./{named}, or "
                f"FAMILY/{named} for a branch of that name.",
            )
        project = project.model_copy(update=counted_from(file.absolute().parent, dict(project)))
        project._file = file.absolute()
        return project

    @classmethod
    def here(cls) -> Self:
        """The project file of the current folder or the nearest above it, up to the repository's root; else an empty
        one. The search ends at a folder that holds `.git`, and at the user's home.

        Raises:
            UsageError: as `load`.
        """
        home = os.path.expanduser("~")
        try:
            here = Path.cwd()
        except FileNotFoundError:  # it was removed
            return cls()
        for folder in (here, *here.parents):
            if os.path.isfile(folder / PROJECT_FILE):  # unlike Path.is_file it takes a folder that is closed to us
                return cls.load(folder / PROJECT_FILE)
            if os.path.exists(folder / ".git") or str(folder) == home:
                break
        return cls()


def names_a_program(argument: str) -> bool:
    """Whether an engine argument, `NAME=VALUE`, is the path of another Python."""
    return argument.partition("=")[0].strip().replace("-", "_") == OTHER_PYTHON


def counted_from(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options by name, with the paths among them counted from that folder; None and "" stay."""
    given = {name: value for name, value in values.items() if value and name in LOCATED}
    return {**values, **{name: LOCATED[name](folder, value) for name, value in given.items()}}


def _file_in(folder: Path, named: str) -> str:
    """A name stays; a .yaml file is a path."""
    return str(folder / named) if named.endswith((".yaml", ".yml")) else named


def _suite_in(folder: Path, named: str) -> str:
    suite, given, data = named.partition("=")
    return f"{_file_in(folder, suite)}={folder / data}" if given and data else _file_in(folder, named)


def _checkpoint_in(folder: Path, named: str) -> str:
    """A folder that is written as one, or a GGUF file; anything else is a name."""
    path = named.startswith(("./", "../")) or named in (".", "..") or (named.endswith(".gguf") and ":" not in named)
    return str(folder / named) if path else named


def _place_in(folder: Path, named: str) -> str:
    """An address stays; anything else is a path."""
    return named if "://" in named else str(folder / named)


LOCATED: dict[str, Callable[[Path, str], str]] = {
    **dict.fromkeys(("family", "policy"), _file_in),
    "suite": _suite_in,
    "reference": _checkpoint_in,
    **dict.fromkeys(("reference_pack", "history", "out", "corpus", "canaries", "waivers_from"), _place_in),
}
"""How each option that may hold a path is counted from a folder."""
