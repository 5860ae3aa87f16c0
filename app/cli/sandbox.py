"""`q36eval sandbox`: the sandbox family's files."""

from typing import Annotated

import typer

from q36eval.app.cli.options import JsonOption, note, print_json
from q36eval.config.paths import Paths
from q36eval.errors import CorruptCheckpointError, UsageError

app = typer.Typer(no_args_is_help=True, help="The sandbox's branches.")


@app.command("build")
def build(
    branch: Annotated[str, typer.Argument(help="Branch name, or all.")] = "all",
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Fetch the weights from this checkout, or from the web address of its data/sandbox.",
            metavar="DIR|URL",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch and build branches, and verify their bytes.

    An installed q36eval has no weights: they are fetched into the state folder. What is not committed whole is built.
    Each file is checked against its manifest, those of the evals and the corpus too.
    """
    from q36eval.app.sandbox import NAMES, verify
    from q36eval.app.sandbox import build as build_branch
    from q36eval.app.sandbox_files import fetch
    from q36eval.evals.frozen import verify as verify_frozen

    paths = Paths.default()
    wanted = NAMES if branch == "all" else (branch,)
    if not paths.is_checkout:
        if branch in ("all", *NAMES):
            fetch(wanted, paths, source, note)
    elif source is not None:
        raise UsageError(
            "sandbox-in-checkout",
            "This checkout has the sandbox's weights; restore damaged ones with: git checkout data/sandbox",
        )
    problems = verify(paths.sandbox) if paths.is_checkout else []
    if problems:
        raise CorruptCheckpointError("sandbox-damaged", " ".join(problems))
    for folder in ("tasks", "corpus"):
        verify_frozen(paths.data / folder / "sandbox")
    folders = {}
    for name in wanted:
        folders[name] = str(build_branch(name, paths.sandbox, paths.built))
        if not as_json:
            print(f"{name}: {folders[name]}")
    if as_json:
        print_json(folders)
