"""`q36eval history gc`: remove unneeded data."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.config.paths import Paths

if TYPE_CHECKING:
    from q36eval.app.history.garbage_collection import Plan, Removal

KINDS = {
    "run": "runs",
    "pack": "reference packs",
    "copy": "copies of the database",
}
SHOWN = 10
LONGEST_DAYS = 36_500
MIB = 1024 * 1024


def gc(
    keep_days: Annotated[
        int | None,
        typer.Option(
            help="Also delete runs, unused reference packs and copies of the database older than this many days.",
            min=1,
            max=LONGEST_DAYS,
        ),
    ] = None,
    keep_newest: Annotated[
        int, typer.Option(help="With --keep-days: retain this many newest runs of each branch all the same.", min=1)
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what is old, and texts that no run refers to.

    A run that was ever blessed or signed is always retained. A reference pack is captured again when it is needed.
    """
    from q36eval.app.history.garbage_collection import Retention, plan, remove

    retention = None if keep_days is None else Retention(keep_days, keep_newest)
    paths = Paths.default()
    history = open_history(paths, writing=not dry_run)
    planned = plan(history, paths, retention, datetime.now(UTC))
    gone = [] if dry_run else remove(history, paths, planned)
    shown = list(planned.removals) if dry_run else gone
    if as_json:
        removed = [{"kind": one.kind, "name": one.name, "why": one.why, "size_bytes": one.size_bytes} for one in shown]
        print_json({"dry_run": dry_run, "removed": removed})
        return
    _print(planned, shown, dry_run)


def _print(planned: "Plan", shown: "list[Removal]", dry_run: bool) -> None:
    from q36eval.app.cli.tables import print_plain

    verb = "would be removed" if dry_run else "removed"
    for kind, words in KINDS.items():
        of_kind = [one for one in shown if one.kind == kind]
        if not of_kind:
            continue
        size = sum(one.size_bytes for one in of_kind)
        print(f"{words} {verb}: {len(of_kind):,}, {size / MIB:,.1f} MiB")
        for one in of_kind[:SHOWN]:
            print_plain(f"  {one.name}  {one.why}")
        if len(of_kind) > SHOWN:
            print(f"  and {len(of_kind) - SHOWN:,} more; --json names them all")
    remaining = [] if dry_run else [one for one in planned.removals if one not in shown]
    if remaining:
        print(f"{len(remaining):,} entries were in use or could not be removed, and stay.")
    if not shown:
        print("Nothing to remove.")
