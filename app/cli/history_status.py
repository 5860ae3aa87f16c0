"""`q36eval history status`: what may ship for which use, in the words of the dashboard's first page."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.history_list import RunsOfBranch, RunsOfFamily, check_known, run_filter
from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.errors import ExitCode

if TYPE_CHECKING:
    from q36eval.app.dashboard.models.front import Front
    from q36eval.history import History

SHOWN = 10


def status(
    family: RunsOfFamily = None,
    branch: RunsOfBranch = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check that history is what was written instead; exit 1 when not.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show what may ship, for every family and branch.

    The newest run of what is there now decides for each use, if its policy is at least as strict as the family's. The
    exit code is 0, whatever may ship.
    """
    from q36eval.app.dashboard.models.banner import banner, sentence
    from q36eval.app.dashboard.models.front import in_order
    from q36eval.app.shipping import Fronts, OfHistory
    from q36eval.reports.text import name, plain

    history = open_history()
    if verify:
        return _verify(history, as_json)
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
        return int(ExitCode.PASS)
    if not rows:
        print("No run yet; q36eval gate --branch fp8-head makes one.")
    for one in families:
        if branch is None:
            print(said[one])
        for row in asked[one]:
            print(f"  {name(row.row.of.branch)}  {plain(row.chip)}  {plain(row.why)}")
    return int(ExitCode.PASS)


def _verify(history: "History", as_json: bool) -> int:
    """Walk the chain of verdicts and decisions, and compare every run, its evidence and every decision with it."""
    from q36eval.app.cli.tables import print_plain

    found = history.verify()
    code = int(ExitCode.PASS if found.fits else ExitCode.FAIL)
    if as_json:
        misfits = [{"entry": one.position, "why": one.why} for one in found.misfits]
        print_json(
            {
                "fits": found.fits,
                "entries": found.entries,
                "runs": found.runs,
                "head": found.head.model_dump(),
                "misfits": misfits,
            }
        )
        return code
    if found.fits:
        print_plain(f"All {found.entries:,} entries fit, and so do the {found.runs:,} runs that they cover.")
    else:
        print_plain(f"The history {history.name} is not what was written:")
        for one in found.misfits[:SHOWN]:
            where = "without an entry" if one.position is None else f"entry {one.position}"
            print_plain(f"  {where}: {one.why}")
        if len(found.misfits) > SHOWN:
            print_plain(f"  and {len(found.misfits) - SHOWN:,} more; --json lists them all")
    print_plain(f"Head of the chain: entry {found.head.position}, {found.head.sha256}")
    return code


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
