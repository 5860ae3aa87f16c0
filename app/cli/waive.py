"""`q36eval waive`: reviewers' written exceptions."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.options import FamilyOption, JsonOption, OneBranch, Quiet, load_policy, open_history, print_json
from q36eval.app.targets import load_family, name_in_history
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.gate import Policy
    from q36eval.history import RunRecord, WaiverRecord

app = typer.Typer(no_args_is_help=True, help="Add, list, revoke and export waivers.")

IN_FORCE = "in force"

AnyBranch = Annotated[
    str | None, typer.Option("--branch", help="Only waivers of this branch.", autocompletion=completing.branches)
]


@app.command("add")
def add(
    branch: OneBranch,
    owner: Annotated[str, typer.Option(help="Who is responsible for it.")],
    reason: Annotated[str, typer.Option(help="Why it is acceptable.")],
    expires: Annotated[
        str, typer.Option(help="Last day on which it holds, at most a year ahead.", metavar="YYYY-MM-DD")
    ],
    criterion: Annotated[str | None, typer.Option(help="Excuse this criterion, by its id.")] = None,
    slice: Annotated[str | None, typer.Option(help="Excuse the criteria over this slice.")] = None,
    canary: Annotated[str | None, typer.Option(help="Excuse what only this canary caused.")] = None,
    family: FamilyOption = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy whose criterion ids it uses; the family's by default.",
            metavar="NAME|FILE",
            autocompletion=completing.policies,
        ),
    ] = None,
    ahead: Annotated[
        bool, typer.Option("--ahead", help="Write it for the next gate, though the newest run does not need it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a waiver for one branch.

    It excuses what every given scope (--criterion, --slice, --canary) covers. Shows which judged runs it would change,
    and is refused where it would change nothing of the newest.
    """
    import q36eval.app.reviewing.effects as effecting
    import q36eval.app.reviewing.waiving as waiving
    from q36eval.app.cli.tables import print_plain
    from q36eval.gate import Waiver
    from q36eval.reports.next_step import full_record

    today, paths = datetime.now(UTC).date(), Paths.default()
    if criterion is None and slice is None and canary is None:
        raise UsageError(
            "waiver-scope-required",
            "A waiver needs a scope: give --criterion, --slice or --canary, or several to narrow it.",
        )
    if not owner.strip() or not reason.strip():
        raise UsageError("reason-required", "A waiver needs an owner and a reason.")
    until = _date(expires)
    effecting.check_expiry(until, today)
    chosen = load_family(family, paths)
    name = name_in_history(branch, chosen)
    scope = {"criterion": criterion or None, "slice": slice or None, "canary": canary or None}
    waiver = Waiver(owner=owner, reason=reason, expires=until, **scope)
    history = open_history(paths)
    runs = waiving.judged_runs(history, chosen.name, name)
    waiving.check_names(waiver, name, chosen, _policies(policy, chosen, runs, paths), runs, history)
    effects = effecting.effects(history, runs, waiver, today)
    if not ahead:
        effecting.check_effect(effects)
    number = history.add_waiver(chosen.name, name, waiver)
    if as_json:
        changes = [
            {"run": one.run.id, "before": one.before.headline, "after": one.after.headline, "sentence": one.sentence}
            for one in effects
        ]
        print_json({"number": number, **_written(chosen.name, name, waiver.model_dump(mode="json")), "runs": changes})
        return
    if Quiet.wanted:
        return
    print_plain(f"Waiver {number}: {waiver.scope} of {chosen.name}/{name}, by {owner} until {until}.")
    print_plain("As of today, of the newest judged runs:" if effects else "No run of this branch was judged yet.")
    for one in effects:
        print_plain(f"  {one.sentence}")
    if effects and (needs := effecting.record_needed(effects[0].run)):
        print_plain(f"{needs} This evaluates them: {full_record(effects[0].run)}")
    print_plain(f"Gate the branch anew for a verdict with it: q36eval gate --branch {branch}.")


@app.command("list")
def list_waivers(
    branch: AnyBranch = None,
    family: FamilyOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list expired and revoked waivers.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the waivers in force."""
    today = datetime.now(UTC).date()
    records = _records(branch, family)
    shown = [record for record in records if everything or _state(record, today) == IN_FORCE]
    if as_json:
        print_json([_row(record, today) for record in shown])
        return
    if not shown:
        hidden = f"; --all shows {len(records)} expired or revoked" if records else ""
        print(f"No waivers in force{hidden}.")
        return
    from rich.console import Console

    from q36eval.app.cli.tables import plain_table

    columns = ("number", "of", "excuses", "owner", "reason", "expires", "state")
    rows = [[_cell(column, record, today) for column in columns] for record in shown]
    Console().print(plain_table(columns, rows, [0], [0, 5]))


@app.command("revoke")
def revoke(
    number: Annotated[int, typer.Argument(help="Number of the waiver, as `waive list` shows it.", min=1)],
    owner: Annotated[str | None, typer.Option(help="Who revokes it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a waiver.

    It stays on record. Runs decided before keep their verdict.
    """
    from q36eval.app.cli.tables import print_plain

    record = open_history().revoke_waiver(number, owner)
    if as_json:
        print_json(_row(record, datetime.now(UTC).date()))
        return
    print_plain(
        f"Revoked waiver {number}: {record.waiver.scope} of {record.family}/{record.branch}; gate the branch anew."
    )


@app.command("export")
def export(
    branch: AnyBranch = None,
    family: FamilyOption = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of stdout.", metavar="FILE")] = None,
    as_json: JsonOption = False,
) -> None:
    """Export the waivers in force as YAML.

    The file can be reviewed like code; `gate --waivers-from` reads it.
    """
    from q36eval.app.reviewing.waiver_files import waivers_yaml

    today = datetime.now(UTC).date()
    records = [record for record in _records(branch, family) if _state(record, today) == IN_FORCE]
    text = waivers_yaml(records)
    if as_json:
        print_json([_row(record, today) for record in records])
    if out is None and as_json:
        return
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError("file-unwritable", f"The waiver file {out} cannot be written: {error.strerror}.") from error


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError("date-malformed", f"The expiry {text!r} is not a date; write it as YYYY-MM-DD.") from error


def _policies(named: str | None, family: Family, runs: "list[RunRecord]", paths: Paths) -> "list[Policy]":
    """Those whose ids a waiver may use: the one named, else the family's and those that judged the branch."""
    from q36eval.history.deciding import policy_of

    kept = [] if named is not None else [policy_of(run) for run in runs]
    return [load_policy(named, family, paths), *kept]


def _records(branch: str | None, family: str | None) -> "list[WaiverRecord]":
    """The waivers of that family (of all families where none is named) and branch.

    Raises:
        UsageError: nothing bears that branch's name: a slip of the pen would export no waivers at all.
    """
    from q36eval.app.reviewing.waiving import check_branch

    paths = Paths.default()
    chosen = load_family(family, paths)
    name = None if branch is None else name_in_history(branch, chosen)
    history = open_history(paths)
    records = history.waiver_records(None if family is None and branch is None else chosen.name, name)
    if name is not None and not records:
        check_branch(name, chosen, history)
    return records


def _state(record: "WaiverRecord", today: date) -> str:
    if record.revoked is not None:
        return "revoked"
    if record.waiver.expires < today:
        return "expired"
    return IN_FORCE


def _written(family: str, branch: str, waiver: dict[str, Any]) -> dict[str, Any]:
    return {"family": family, "branch": branch, **waiver}


def _cell(column: str, record: "WaiverRecord", today: date) -> str:
    return f"{record.family}/{record.branch}" if column == "of" else str(_row(record, today)[column])


def _row(record: "WaiverRecord", today: date) -> dict[str, Any]:
    written = _written(record.family, record.branch, record.waiver.model_dump(mode="json"))
    dates = {
        name: None if at is None else at.isoformat()
        for name, at in (("added", record.added), ("revoked", record.revoked))
    }
    about = {"excuses": record.waiver.scope, "state": _state(record, today), "revoked_by": record.revoked_by}
    return {"number": record.number, **written, **about, **dates}
