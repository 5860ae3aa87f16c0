"""`q36eval history status`: how every branch stands, in the words of the dashboard's first page."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.history_list import RunsOfBranch, RunsOfFamily, check_known, run_filter
from q36eval.app.cli.options import JsonOption, open_history, print_json

if TYPE_CHECKING:
    from q36eval.app.standing import BranchStanding


def status(
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    as_json: JsonOption = False,
) -> None:
    """Show what may ship, for every family and branch.

    The newest run under the family's current policy decides for each use. The exit code is 0, whatever may ship.
    """
    from q36eval.app.standing import Standings, in_order
    from q36eval.inert_text import name, plain

    history = open_history()
    wanted = run_filter(family, branch)
    if history.count_runs(wanted) == 0:
        check_known(history, wanted)
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
    for one, of in asked.items():
        if of:
            print(name(one))
        for row in of:
            print(f"  {name(row.of.branch)}  {plain(row.chip)}  {plain(row.why)}")


def _branches(rows: "list[BranchStanding]") -> list[dict[str, Any]]:
    return [
        {
            "branch": row.of.branch,
            "standing": row.standing.value,
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
