"""`q36eval init`: write the project file of a repository that releases branches."""

from typing import Annotated

import typer

from q36eval.app.cli.options import BRANCH_HELP, CHECKPOINT, JsonOption, print_json
from q36eval.app.cli.tables import print_plain
from q36eval.app.names import Meaning, is_checkpoint, meaning
from q36eval.config import Paths, Project
from q36eval.config.project import PROJECT_FILE
from q36eval.errors import UsageError

HEADER = """\
# Defaults of q36eval in this folder and below; the command line wins. Keys: {keys}.
# Relative paths count from this file.
"""


def init(
    branch: Annotated[str, typer.Argument(help=BRANCH_HELP, metavar="BRANCH", **CHECKPOINT)],
    reference: Annotated[
        str | None, typer.Argument(help="Reference, named as a branch is; a family's own by default.", **CHECKPOINT)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a q36eval.yaml here, so that `q36eval gate --branch NAME` needs no other option.

    Nothing is downloaded, and an existing file is never overwritten.
    """
    import yaml

    from q36eval.files import real_path

    meant, against = _meaning(branch), None if reference is None else _meaning(reference)
    family = meant.family or (None if against is None else against.family)
    if family is None and against is None:
        raise UsageError("reference-required", f"{branch} belongs to no known family: name its reference after it.")
    body = {} if family is None else {"family": family.name}
    if reference is not None and against is not None and (family is None or against.branch != family.reference):
        body["reference"] = _written(reference, against)
    name = meant.branch or _written(branch, meant)
    text = HEADER.format(keys=", ".join(Project.model_fields)) + yaml.safe_dump(body, sort_keys=False)
    file = real_path(PROJECT_FILE)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError("file-exists", f"{file} exists already; edit it, or remove it first.") from error
    if as_json:
        print_json({"file": str(file), "branch": name, **body})
    else:
        print_plain(f"Wrote {file}. Judge the branch: q36eval gate --branch {name}")
    return 0


def _meaning(named: str) -> Meaning:
    meant = meaning(named, None, Paths.default(), everywhere=True)
    if meant.path is not None and not is_checkpoint(meant.path):
        raise UsageError("branch-unknown", f"There is no checkpoint {named}: name a folder or .gguf file that exists.")
    return meant


def _written(named: str, meant: Meaning) -> str:
    """The unambiguous spelling for the project file: a relative path begins with a dot."""
    return named if meant.path is None or named.startswith(("/", ".")) else f"./{named}"
