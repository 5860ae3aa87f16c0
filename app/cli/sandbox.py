"""`q36eval sandbox`: the sandbox family's files."""

from typing import Annotated

import typer

from q36eval.app.cli.options import JsonOption, note, print_json
from q36eval.config.paths import Paths
from q36eval.errors import CorruptCheckpointError, UsageError

app = typer.Typer(no_args_is_help=True, help="List, build and verify the sandbox's branches.")


@app.command("list")
def list_branches(as_json: JsonOption = False) -> None:
    """List the sandbox's branches and where each is."""
    from q36eval.app.sandbox import status

    paths = Paths.default()
    is_there = (paths.sandbox / "manifest.json").is_file()
    entries = status(paths.sandbox if is_there else paths.data / "sandbox", paths.built)
    rows = [
        {
            "branch": entry.branch.name,
            "recipe": entry.branch.recipe,
            "as in": entry.branch.as_in,
            "kind": entry.kind,
            "MB": None if entry.n_bytes is None else f"{entry.n_bytes / 1e6:.1f}",
        }
        for entry in entries
    ]
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0])
    for row in rows:
        absent = "not fetched" if row["kind"] == "committed" else "built on first use"
        table.add_row(*(value or absent for value in row.values()))
    Console().print(table)


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
    Each file is checked against the manifest.
    """
    from q36eval.app.sandbox import build as build_branch
    from q36eval.app.sandbox import names
    from q36eval.app.sandbox_files import fetch

    paths = Paths.default()
    wanted = names() if branch == "all" else [branch]
    if not paths.is_checkout:
        if branch in ("all", *names()):
            fetch(wanted, paths, source, note)
    elif source is not None:
        raise UsageError(
            "sandbox-in-checkout",
            "This checkout has the sandbox's weights; restore damaged ones with: git checkout data/sandbox",
        )
    folders = {}
    for name in wanted:
        folders[name] = str(build_branch(name, paths.sandbox, paths.built))
        if not as_json:
            print(f"{name}: {folders[name]}")
    if as_json:
        print_json(folders)


@app.command("verify")
def verify(as_json: JsonOption = False) -> None:
    """Check every committed data file.

    Exit 1 when a file differs from its manifest.
    """
    from q36eval.app.sandbox import verify as verify_branches
    from q36eval.evals.frozen import verify as verify_frozen

    paths = Paths.default()
    problems = verify_branches(paths.sandbox)
    if problems:
        raise CorruptCheckpointError("sandbox-damaged", " ".join(problems))
    for folder in ("tasks", "corpus"):
        verify_frozen(paths.data / folder / "sandbox")
    if as_json:
        print_json({"as_the_manifest_says": True})
    else:
        print("Every data file is as its manifest says.")
