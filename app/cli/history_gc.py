"""`q36eval history gc`: remove what nothing needs any more."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.options import JsonOption, open_history, print_json
from q36eval.config.paths import Paths
from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.app.history.collecting import Plan, Removal

KINDS = {
    "run": ("run", "runs"),
    "file": ("file of runs", "files of runs"),
    "folder": ("working folder of a run", "working folders of runs"),
    "pack": ("reference pack", "reference packs"),
    "copy": ("copy of the database", "copies of the database"),
}
SHOWN = 10
LONGEST_DAYS = 36_500
MIB = 1024 * 1024


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")] = False,
    delete_runs: Annotated[
        bool, typer.Option("--delete-runs", help="Also delete runs that the options below do not retain.")
    ] = False,
    keep_newest: Annotated[int | None, typer.Option(help="Retain this many newest runs of each branch.", min=1)] = None,
    keep_days: Annotated[
        int | None, typer.Option(help="Retain runs younger than this many days.", min=1, max=LONGEST_DAYS)
    ] = None,
    retention: Annotated[Path | None, typer.Option(help="File with keep_newest and keep_days.", metavar="FILE")] = None,
    packs: Annotated[
        bool, typer.Option("--packs", help="Also remove reference packs that no run was measured against.")
    ] = False,
    older_than: Annotated[
        int | None,
        typer.Option(
            help="With --packs: also packs not used for this many days; they are captured again when needed.",
            metavar="DAYS",
            min=1,
            max=LONGEST_DAYS,
        ),
    ] = None,
    copies: Annotated[
        bool, typer.Option("--migration-copies", help="Also remove the copies of the database made before migrations.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files and texts that no run refers to.

    A run that was ever blessed or signed is always retained.
    """
    from q36eval.app.history.collecting import Retention, Wanted, plan, remove

    if not delete_runs and (keep_newest, keep_days, retention) != (None, None, None):
        raise UsageError("option-missing", "--keep-newest, --keep-days and --retention need --delete-runs.")
    if older_than is not None and not packs:
        raise UsageError("option-missing", "--older-than needs --packs.")
    unused_for = None if older_than is None else timedelta(days=older_than)
    rules = Retention.of(retention, keep_newest, keep_days) if delete_runs else None
    paths = Paths.default()
    history = open_history(paths, writing=not dry_run)
    planned = plan(history, paths, Wanted(rules, packs, unused_for, copies), datetime.now(UTC))
    gone = [] if dry_run else remove(history, paths, planned)
    shown = list(planned.removals) if dry_run else gone
    if as_json:
        print_json(_body(planned, shown, dry_run))
        return
    _print(planned, shown, dry_run)


def _body(planned: "Plan", shown: "list[Removal]", dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [
            {"kind": one.kind, "name": one.name, "why": one.why, "size_bytes": one.size_bytes} for one in shown
        ],
        "texts": planned.texts,
        "texts_bytes": planned.texts_bytes,
        "notes": list(planned.notes),
    }


def _print(planned: "Plan", shown: "list[Removal]", dry_run: bool) -> None:
    from q36eval.app.cli.tables import print_plain

    verb = "would be removed" if dry_run else "removed"
    for kind, (one_of_them, several) in KINDS.items():
        of_kind = [one for one in shown if one.kind == kind]
        if not of_kind:
            continue
        size = sum(one.size_bytes for one in of_kind)
        words = one_of_them if len(of_kind) == 1 else several
        print(f"{len(of_kind):,} {words} {verb}{f', {size / MIB:,.1f} MiB' if size else ''}:")
        for one in of_kind[:SHOWN]:
            print_plain(f"  {one.name}  {one.why}")
        if len(of_kind) > SHOWN:
            print(f"  and {len(of_kind) - SHOWN:,} more; --json names them all")
    if planned.texts:
        print(f"{planned.texts:,} texts that no run refers to {verb}, {planned.texts_bytes / MIB:,.1f} MiB.")
    if any(one.kind == "run" for one in shown) and dry_run:
        print("Texts that only these runs refer to are removed with them.")
    for note in planned.notes:
        print_plain(note)
    remaining = [] if dry_run else [one for one in planned.removals if one not in shown]
    if remaining:
        print(f"{len(remaining):,} entries were in use or could not be removed, and stay.")
    if not shown and not planned.texts:
        print("Nothing to remove.")
