"""`q36eval review`: people's decisions: baselines, signatures and written exceptions."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli.options import (
    FamilyOption,
    JsonOption,
    OneBranch,
    Quiet,
    RunArgument,
    load_policy,
    open_history,
    print_json,
)
from q36eval.app.cli.tables import plain_table, print_parts, print_plain
from q36eval.app.targets import DerivedFamily, chosen_family, recorded_family
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import UsageError
from q36eval.records import branch_title

if TYPE_CHECKING:
    from q36eval.gate import Policy
    from q36eval.history import History, RunRecord, WaiverRecord

app = typer.Typer(no_args_is_help=True, help="Bless and sign runs; write, list and revoke waivers.")

IN_FORCE = "in force"

AnyBranch = Annotated[str | None, typer.Option("--branch", help="Only waivers of this branch.")]


@app.command("waive")
def waive(
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
    import q36eval.app.reviewing.waivers as waiving
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
    history = open_history(paths)
    chosen, name = recorded_family(family, branch, paths, history)
    scope = {"criterion": criterion or None, "slice": slice or None, "canary": canary or None}
    waiver = Waiver(owner=owner, reason=reason, expires=until, **scope)
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
    print_plain(f"Waiver {number}: {waiver.scope} of {branch_title(chosen.name, name)}, by {owner} until {until}.")
    print_plain("As of today, of the newest judged runs:" if effects else "No run of this branch was judged yet.")
    for one in effects:
        print_plain(f"  {one.sentence}")
    if effects and (needs := effecting.record_needed(effects[0].run)):
        print_plain(f"{needs} This evaluates them: {full_record(effects[0].run)}")
    print_plain(f"Gate the branch again for a verdict with it: q36eval gate --branch {branch}.")


@app.command("list")
def list_waivers(
    branch: AnyBranch = None,
    family: FamilyOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list expired and revoked waivers.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the waivers in force to this YAML file, for `gate --waivers-from`.", metavar="FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the waivers in force."""
    today = datetime.now(UTC).date()
    records = _records(branch, family)
    if out is not None:
        _write(out, [record for record in records if _state(record, today) == IN_FORCE])
    shown = [record for record in records if everything or _state(record, today) == IN_FORCE]
    if as_json:
        print_json([_row(record, today) for record in shown])
        return
    if not shown:
        hidden = f"; --all shows {len(records)} expired or revoked" if records else ""
        print(f"No waivers in force{hidden}.")
        return
    columns = ("number", "of", "excuses", "owner", "reason", "expires", "state")
    rows = [
        [str(row[column]) if column != "of" else branch_title(row["family"], row["branch"]) for column in columns]
        for row in (_row(record, today) for record in shown)
    ]
    print_parts([plain_table(columns, rows, [0], [0, 5])])


@app.command("revoke")
def revoke(
    what: Annotated[
        str,
        typer.Argument(
            help="Number of a waiver, as `review list` shows it; or a run, whose blessing is revoked.",
            metavar="NUMBER|RUN",
        ),
    ],
    owner: Annotated[str | None, typer.Option(help="Who revokes it.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why; needed for a blessing.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a waiver, or the blessing of a run.

    It stays on record. Runs decided before keep their verdict; the blessing before a revoked one counts again.
    """
    history = open_history()
    if not what.isdecimal():
        _revoke_blessing(history, what, owner, reason, as_json)
        return
    record = history.revoke_waiver(int(what), owner)
    if as_json:
        print_json(_row(record, datetime.now(UTC).date()))
        return
    print_plain(
        f"Revoked waiver {what}: {record.waiver.scope} of {branch_title(record.family, record.branch)}; gate the "
        "branch again."
    )


def _revoke_blessing(history: "History", run: str, owner: str | None, reason: str | None, as_json: bool) -> None:
    if owner is None or reason is None:
        raise UsageError("option-missing", "A blessing is revoked with --owner and --reason.")
    run_id = history.get_run(run).id
    *_, blessing = history.revoke_blessing(run_id, owner, reason)
    if as_json:
        print_json(blessing.model_dump(mode="json"))
        return
    now = next(iter(history.blessings(blessing.branch, blessing.family)), None)
    baseline = "no run" if now is None else f"run {now.run_id}"
    print_plain(
        f"Revoked the blessing of run {run_id}, by {owner}; the baseline of {blessing.branch} is {baseline} now."
    )


@app.command("bless")
def bless(
    run: RunArgument,
    owner: Annotated[str, typer.Option(help="Who accepts it.")],
    reason: Annotated[str, typer.Option(help="Why it is acceptable.")],
    as_json: JsonOption = False,
) -> None:
    """Accept a run as the baseline for drift."""
    history = open_history()
    blessing = history.bless(history.get_run(run).id, owner, reason)
    if as_json:
        print_json(blessing.model_dump(mode="json"))
        return
    print_plain(f"{blessing.owner} blessed {blessing.branch}: drift is measured from run {blessing.run_id}.")


@app.command("sign-off")
def sign_off(
    run: RunArgument,
    owner: Annotated[str, typer.Option(help="Who signs.")],
    reason: Annotated[str, typer.Option(help="What was checked, and why it may be released.")],
    as_json: JsonOption = False,
) -> None:
    """Sign a finished run.

    A signature gives `gate --require-sign-off` what it waits for, and accepts gains marked as anomalous and a PASS
    after more attempts than the policy allows. It changes nothing else.
    """
    from q36eval.history.decisions import sign

    history = open_history()
    record = history.get_run(run)
    signature = sign(history, record, owner, reason)
    if as_json:
        print_json({"run": record.id, **json.loads(signature.model_dump_json())})
        return
    print_plain(f"Signed run {record.id} of {record.branch} by {owner}: report {signature.report_sha256[:12]}.")
    print_plain(f"Decide the run with this signature: q36eval gate --resume {record.id} --require-sign-off")


def _write(out: Path, records: "list[WaiverRecord]") -> None:
    from q36eval.app.reviewing.waiver_files import waivers_yaml

    try:
        out.write_text(waivers_yaml(records), encoding="utf-8")
    except OSError as error:
        raise UsageError("file-unwritable", f"The waiver file {out} cannot be written: {error.strerror}.") from error


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError("date-malformed", f"The expiry {text!r} is not a date; write it as YYYY-MM-DD.") from error


def _policies(named: str | None, family: Family, runs: "list[RunRecord]", paths: Paths) -> "list[Policy]":
    """The policies whose ids a waiver may use: the given one, else the family's and those that judged the branch."""
    from q36eval.history.decisions import policy_of

    kept = [] if named is not None else [policy_of(run) for run in runs]
    if named is None and isinstance(family, DerivedFamily):  # it has only the policies of its runs
        return kept
    return [load_policy(named, family, paths), *kept]


def _records(branch: str | None, family: str | None) -> "list[WaiverRecord]":
    """The waivers of that family (without one, of all families) and branch.

    Raises:
        UsageError: the branch's name is unknown: a typo would export no waivers at all.
    """
    from q36eval.app.reviewing.waivers import check_branch

    paths = Paths.default()
    history = open_history(paths)
    if branch is None:
        chosen = None if family is None else chosen_family(family, paths)
        return history.waiver_records(None if chosen is None else chosen.name, None)
    named, name = recorded_family(family, branch, paths, history)
    records = history.waiver_records(named.name, name)
    if not records:
        check_branch(name, named, history)
    return records


def _state(record: "WaiverRecord", today: date) -> str:
    if record.revoked is not None:
        return "revoked"
    if record.waiver.expires < today:
        return "expired"
    return IN_FORCE


def _written(family: str, branch: str, waiver: dict[str, Any]) -> dict[str, Any]:
    return {"family": family, "branch": branch, **waiver}


def _row(record: "WaiverRecord", today: date) -> dict[str, Any]:
    return {
        "number": record.number,
        **_written(record.family, record.branch, record.waiver.model_dump(mode="json")),
        "excuses": record.waiver.scope,
        "state": _state(record, today),
        "revoked_by": record.revoked_by,
        "added": record.added.isoformat(),
        "revoked": None if record.revoked is None else record.revoked.isoformat(),
    }
