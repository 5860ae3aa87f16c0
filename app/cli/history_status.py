"""`q36eval history status`: the state of every branch, as on the dashboard's first page."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.history_list import RunsOfBranch, RunsOfFamily, check_known, run_filter
from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.app.standing import BranchStanding


def status(
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    archive: Annotated[
        bool | None,
        typer.Option(
            "--archive/--restore",
            help="Take --branch off the list and the first page until its next gate, or put it back.",
        ),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Who archives or restores it.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what may ship, for every family and branch.

    The newest run under the family's current policy decides for each use. The exit code is 0, whatever may ship.
    Archiving changes no verdict and nothing that may ship.
    """
    from q36eval.app.standing import Standings, in_order
    from q36eval.inert_text import name, plain

    history = open_history()
    wanted = run_filter(family, branch)
    if history.count_runs(wanted) == 0:
        check_known(history, wanted)
    if archive is not None:
        keys = [key for of in history.branches() if (key := (of.family, of.branch))[1] == wanted.branch]
        keys = [key for key in keys if family in (None, key[0])]
        if len(keys) != 1:
            raise UsageError("option-missing", "Name one branch with --branch, and --family where several have it.")
        history.archive(*keys[0], owner or "", reason or "", archived=archive)
    elif owner or reason:
        raise UsageError("option-missing", "Say with --archive or --restore what --owner and --reason are for.")
    known = Standings(history, datetime.now(UTC))
    rows = in_order(known.of(row.key) for row in known.all() if family in (None, row.of.family))
    families = {one: [row for row in rows if row.of.family == one] for one in sorted({row.of.family for row in rows})}
    asked = {one: [row for row in of if wanted.branch in (None, row.of.branch)] for one, of in families.items()}
    if as_json:
        body = [{"family": one, "branches": _branches(of)} for one, of in asked.items() if of]
        print_json({"families": body})
        return
    if not rows:
        print("No run yet; q36eval gate --branch fp8-head makes one.")
    apart = [row for of in asked.values() for row in of if row.apart and wanted.branch is None]
    for one, of in asked.items():
        listed = [row for row in of if row not in apart]
        if listed:
            print(name(one))
        for row in listed:
            print(" ", "  ".join(filter(None, (name(row.of.branch), *map(plain, (row.chip, row.why, row.apart))))))
    if apart:
        print(f"Not release candidates: {', '.join(name(row.of.branch) for row in apart)}; --branch NAME says why.")


def _branches(rows: "list[BranchStanding]") -> list[dict[str, Any]]:
    return [
        {
            "branch": row.of.branch,
            "standing": row.standing.value,
            "apart": row.apart or None,
            "lanes": {
                lane.value: {
                    "standing": each.standing.value,
                    "run": None if each.run is None else each.run.id,
                    "why": each.why,
                }
                for lane, each in row.lanes.items()
            },
        }
        for row in rows
    ]
