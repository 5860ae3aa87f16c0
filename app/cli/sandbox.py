"""`q36eval sandbox`: the sandbox family's files."""

import typer

from q36eval.app.cli.options import JsonOption, print_json
from q36eval.config.paths import Paths
from q36eval.errors import CorruptCheckpointError

app = typer.Typer(no_args_is_help=True, help="List, build and verify the sandbox's branches.")


@app.command("list")
def list_branches(as_json: JsonOption = False) -> None:
    """List the sandbox's branches and where each is."""
    from q36eval.app.sandbox import status

    paths = Paths.default()
    entries = status(paths.data / "sandbox", paths.built)
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
        table.add_row(*(value or "built on first use" for value in row.values()))
    Console().print(table)


@app.command("build")
def build(branch: str = typer.Argument("all", help="Branch name, or all.")) -> None:
    """Build branches and verify their bytes.

    Builds what is not committed whole, and checks it against the manifest.
    """
    from q36eval.app.sandbox import build as build_branch
    from q36eval.app.sandbox import names

    paths = Paths.default()
    for name in names() if branch == "all" else [branch]:
        print(f"{name}: {build_branch(name, paths.data / 'sandbox', paths.built)}")


@app.command("verify")
def verify() -> None:
    """Check every committed data file.

    Exit 1 when a file differs from its manifest.
    """
    from q36eval.app.sandbox import verify as verify_branches
    from q36eval.evals.frozen import verify as verify_frozen

    paths = Paths.default()
    problems = verify_branches(paths.data / "sandbox")
    if problems:
        raise CorruptCheckpointError(" ".join(problems))
    for folder in ("tasks", "corpus"):
        verify_frozen(paths.data / folder / "sandbox")
    print("Every data file is as its manifest says.")
