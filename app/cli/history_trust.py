"""`q36eval history bless`: what counts as the baseline of a branch."""

from typing import Annotated

import typer

from q36eval.app.cli.options import JsonOption, RunArgument, open_history, print_json


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
