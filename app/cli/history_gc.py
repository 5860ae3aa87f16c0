"""`q36eval history gc`: remove what nothing needs any more."""

from datetime import UTC, datetime
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and touch nothing.")] = False,
    delete_runs: Annotated[
        bool, typer.Option("--delete-runs", help="Whole runs too, but those that the options below keep.")
    ] = False,
    keep_newest: Annotated[int | None, typer.Option(help="Keep so many runs of each branch.", min=1)] = None,
    keep_days: Annotated[
        int | None, typer.Option(help="Keep runs younger than so many days.", min=1, max=LONGEST_DAYS)
    ] = None,
    retention: Annotated[
        Path | None, typer.Option(help="A file with keep_newest and keep_days.", metavar="FILE")
    ] = None,
    packs: Annotated[
        bool, typer.Option("--packs", help="Captures of references too that no run was measured against.")
    ] = False,
    copies: Annotated[
        bool, typer.Option("--migration-copies", help="Copies of the database too from before migrations.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files, folders and texts that no run refers to. A run that was ever blessed or signed always stays."""
    from q36eval.app.history.collecting import Retention, Wanted, plan, remove

    if not delete_runs and (keep_newest, keep_days, retention) != (None, None, None):
        raise UsageError("Which runs stay matters only where runs are deleted: give --delete-runs with it.")
    rules = Retention.of(retention, keep_newest, keep_days) if delete_runs else None
    paths = Paths.default()
    history = open_history(paths, writing=not dry_run)
    found = plan(history, paths, Wanted(rules, packs, copies), datetime.now(UTC))
    gone = [] if dry_run else remove(history, paths, found)
    shown = list(found.removals) if dry_run else gone
    if as_json:
        print_json(_body(found, shown, dry_run))
        return
    _print(found, shown, dry_run)


def _body(found: "Plan", shown: "list[Removal]", dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "removed": [
            {"kind": one.kind, "name": one.name, "why": one.why, "size_bytes": one.size_bytes} for one in shown
        ],
        "texts": found.texts,
        "texts_bytes": found.texts_bytes,
        "notes": list(found.notes),
    }


def _print(found: "Plan", shown: "list[Removal]", dry_run: bool) -> None:
    from q36eval.app.cli.tables import print_plain

    verb = "would go" if dry_run else "gone"
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
    if found.texts:
        print(f"{found.texts:,} texts that no run refers to {verb}, {found.texts_bytes / MIB:,.1f} MiB.")
    if any(one.kind == "run" for one in shown) and dry_run:
        print("With the runs go the texts that only they refer to.")
    for note in found.notes:
        print_plain(note)
    left = [] if dry_run else [one for one in found.removals if one not in shown]
    if left:
        print(f"{len(left):,} things were in use by then, or could not be removed, and stay.")
    if not shown and not found.texts:
        print("Nothing to remove.")
