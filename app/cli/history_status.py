"""`q36eval history status`: what may ship for which use, in the words of the dashboard's first page."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from q36eval.app.cli.history_list import RunsOfBranch, RunsOfFamily, check_known, run_filter
from q36eval.app.cli.options import JsonOption, open_history, print_json

if TYPE_CHECKING:
    from q36eval.app.dashboard.models.front import Front


def status(
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    as_json: JsonOption = False,
) -> None:
    """Show what may ship, for every family and branch.

    The newest run of what is there now decides for each use, if its policy is at least as strict as the family's. The
    exit code is 0, whatever may ship.
    """
    from q36eval.app.dashboard.models.banner import banner, sentence
    from q36eval.app.dashboard.models.front import in_order
    from q36eval.app.shipping import Fronts, OfHistory
    from q36eval.reports.text import name, plain

    history = open_history()
    wanted = run_filter(family, branch)
    if history.count_runs(wanted) == 0:
        check_known(history, wanted)
    known = Fronts(OfHistory(history), datetime.now(UTC))
    rows = known.with_drift(known.with_reports(known.all()))
    families = sorted({row.row.of.family for row in rows if family in (None, row.row.of.family)})
    of = {one: in_order([row for row in rows if row.row.of.family == one]) for one in families}
    said = {one: sentence(banner(one, of[one], known.rules[one].branches), code="`{}`".format) for one in families}
    asked = {one: [row for row in of[one] if branch in (None, row.row.of.branch)] for one in families}
    if as_json:
        body = [{"family": one, "sentence": said[one], "branches": _branches(asked[one])} for one in families]
        print_json({"families": [each for each in body if each["branches"]]})
        return
    if not rows:
        print("No run yet; q36eval gate --branch fp8-head makes one.")
    for one in families:
        if branch is None:
            print(said[one])
        for row in asked[one]:
            print(f"  {name(row.row.of.branch)}  {plain(row.chip)}  {plain(row.why)}")


def _branches(rows: "list[Front]") -> list[dict[str, Any]]:
    return [
        {
            "branch": row.row.of.branch,
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
