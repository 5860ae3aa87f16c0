"""`q36eval history verify`, `accept` and `bless`: what may be believed of history, and what is put in force."""

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import JsonOption, RunArgument, open_history, print_json
from q36eval.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from q36eval.history import History

SHOWN = 10
LEAST = 12
"""Digits of an entry's hash: fewer are found by chance, or by trying."""
_AN_ENTRY = re.compile(rf"[0-9a-fA-F]{{{LEAST},64}}")


def verify(
    anchor: Annotated[
        str | None,
        typer.Option("--anchor", help="Also look for this entry, kept elsewhere, in the chain.", metavar="SHA256"),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Check that history is what was written.

    Walks the chain of verdicts and decisions, and holds every run, its evidence and every decision against it. Exit 0
    when all fits, 1 when not; names the first that does not.
    """
    from q36eval.app.cli.tables import print_plain

    if anchor is not None and not _AN_ENTRY.fullmatch(anchor.strip()):
        raise UsageError(
            "option-value", f"--anchor takes an entry's hash, or its first {LEAST} digits at least, not {anchor!r}."
        )
    history = open_history()
    found = history.verify()
    anchored = None if anchor is None else history.has_entry(anchor.strip())
    fits = found.fits and anchored is not False
    if as_json:
        misfits = [{"entry": one.position, "why": one.why} for one in found.misfits]
        print_json(
            {
                "fits": fits,
                "entries": found.entries,
                "runs": found.runs,
                "head": found.head.model_dump(),
                "misfits": misfits,
                "anchored": anchored,
            }
        )
        return int(ExitCode.PASS if fits else ExitCode.FAIL)
    if found.fits:
        print_plain(f"All {found.entries:,} entries fit, and so do the {found.runs:,} runs that they cover.")
    else:
        print_plain(f"The history {history.name} is not what was written:")
        for one in found.misfits[:SHOWN]:
            where = "without an entry" if one.position is None else f"entry {one.position}"
            print_plain(f"  {where}: {one.why}")
        if len(found.misfits) > SHOWN:
            print_plain(f"  and {len(found.misfits) - SHOWN:,} more; --json lists them all")
    if anchor is not None:
        print_plain(f"The entry {anchor} is {'in' if anchored else 'NOT in'} this chain.")
    print_plain(f"Head of the chain: entry {found.head.position}, {found.head.sha256}")
    return int(ExitCode.PASS if fits else ExitCode.FAIL)


def accept(
    decision: Annotated[
        str | None, typer.Argument(help="Id of the decision, such as waiver-3; without one, lists what waits.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Who accepts it.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why it may count here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put a decision that was imported in force.

    One at a time, and by name: that is a decision of its own. Runs that were decided keep their verdict until they are
    decided again.
    """
    from q36eval.app.cli.tables import print_plain
    from q36eval.run.drift import keep_drifts

    history = open_history()
    if decision is None:
        _list_waiting(history, as_json)
        return
    if owner is None or reason is None:
        raise UsageError("reason-required", "Who accepts a decision from elsewhere says so: give --owner and --reason.")
    accepted = history.accept(decision, owner, reason)
    if accepted.what == "blessing":
        keep_drifts(history, accepted.family, accepted.branch)
    if as_json:
        print_json(json.loads(accepted.model_dump_json()))
        return
    print_plain(f"In force from now on, accepted by {owner}: {accepted.sentence}")
    if accepted.run_id is not None and accepted.what == "sign-off":
        again = f"q36eval gate --branch {accepted.branch} --resume {accepted.run_id} --require-sign-off"
        print_plain(f"Decide the run with it: {again}")


def _list_waiting(history: "History", as_json: bool) -> None:
    from q36eval.app.cli.tables import print_plain

    waiting = history.decisions_by_people(not_in_force=True)
    if as_json:
        print_json([json.loads(one.model_dump_json()) for one in waiting])
        return
    for one in waiting:
        print_plain(f"{one.id}: {one.sentence} ({one.origin.words})")
    if not waiting:
        print_plain("No imported decision waits to be accepted.")


def bless(
    run: RunArgument,
    owner: Annotated[str, typer.Option(help="Who accepts it, or revokes the blessing.")],
    reason: Annotated[str, typer.Option(help="Why it is acceptable, or no longer.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Revoke the blessing of this run instead.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Accept a run as the baseline for drift.

    With --revoke its blessing stays on record and counts no longer: the one before it does.
    """
    from q36eval.app.cli.tables import print_plain
    from q36eval.run.drift import keep_drifts

    history = open_history()
    run_id = history.get_run(run).id
    if revoke:
        *_, blessing = history.revoke_blessing(run_id, owner, reason)
    else:
        blessing = history.bless(run_id, owner, reason)
    keep_drifts(history, blessing.family, blessing.branch)
    if as_json:
        print_json(blessing.model_dump(mode="json"))
        return
    if not revoke:
        print_plain(f"Blessed {blessing.branch} as run {blessing.run_id} found it, by {blessing.owner}.")
        return
    now = history.blessed(blessing.branch, blessing.family)
    print_plain(
        f"Revoked the blessing of run {run_id}, by {owner}; {blessing.branch} is held against "
        f"{'no run' if now is None else f'run {now.id}'} now."
    )
