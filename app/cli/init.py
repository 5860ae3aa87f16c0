"""`q36eval init`: write the project file of a repository that releases branches."""

from typing import Annotated, Any

import typer

from q36eval.app.cli.options import BRANCH_HELP, CHECKPOINT, JsonOption, print_json
from q36eval.app.names import Meaning, is_checkpoint, meaning
from q36eval.config import Paths, Project
from q36eval.config.project import PROJECT_FILE
from q36eval.errors import UsageError

HEADER = """\
# Defaults of q36eval in this folder and below; the command line wins. Keys: {keys}.
# Relative paths count from this file. Judge a branch: q36eval gate --branch {branch}
"""


def init(
    branch: Annotated[str, typer.Argument(help=BRANCH_HELP, metavar="BRANCH", **CHECKPOINT)],
    reference: Annotated[
        str | None,
        typer.Argument(help="Reference, named as a branch is; a family's own by default.", **CHECKPOINT),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a q36eval.yaml here, so that `q36eval gate --branch NAME` needs no other option.

    Nothing is downloaded, and an existing file is never overwritten.
    """
    from q36eval.app.cli.tables import print_plain
    from q36eval.files import real_path

    paths = Paths.default()
    meant = _checked(meaning(branch, None, paths, everywhere=True), branch)
    against = None if reference is None else _checked(meaning(reference, None, paths, everywhere=True), reference)
    family = meant.family or (None if against is None else against.family)
    if family is None and reference is None:
        raise UsageError(
            "reference-required", f"{branch} belongs to no known family: name its reference after it, too."
        )
    body = {} if family is None else {"family": family.name}
    if reference is not None and not _is_own_reference(against):
        body["reference"] = _written(reference, against)
    name = _written(branch, meant) if meant.family is None else meant.branch
    file = real_path(PROJECT_FILE)
    text = _text(body, name)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError("file-exists", f"{file} exists already; edit it, or remove it first.") from error
    Project.load(file)
    if as_json:
        print_json({"file": str(file), "branch": name, **body})
    else:
        print_plain(f"Wrote {file}. Judge the branch: q36eval gate --branch {name}")
    return 0


def _checked(meant: Meaning, named: str) -> Meaning:
    if meant.path is not None and not is_checkpoint(meant.path):
        raise UsageError("branch-unknown", f"There is no checkpoint {named}: name a folder or .gguf file that exists.")
    return meant


def _is_own_reference(meant: Meaning | None) -> bool:
    """Whether it is the reference of its family, which the file then need not name."""
    return meant is not None and meant.family is not None and meant.branch == meant.family.reference


def _written(named: str, meant: Meaning | None) -> str:
    """A name as it is unambiguous in the project file: a relative path begins with a dot."""
    path = None if meant is None else meant.path
    if path is None or path.is_absolute() or named.startswith("."):
        return named
    return f"./{named}"


def _text(body: dict[str, Any], branch: str) -> str:
    import yaml

    keys = ", ".join(Project.model_fields)
    shown = " ".join(branch.splitlines())  # a name with a line break must not end the comment
    return HEADER.format(keys=keys, branch=shown) + yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
