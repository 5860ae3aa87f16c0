"""`q36eval history replay`: decide a run again, from history alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.options import JsonOption, RunArgument, load_policy, open_history, print_json
from q36eval.app.targets import load_family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.provenance import provenance

if TYPE_CHECKING:
    from q36eval.app.reviewing.replaying import Replay, Retrial
    from q36eval.history import Decision, History, RunRecord

SHOWN = 20


def replay(
    run: RunArgument,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Judge the same evidence by this policy instead.",
            metavar="NAME|FILE",
            autocompletion=completing.policies,
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also compare with this report.json, kept elsewhere.", metavar="FILE")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Decide a past run again, from history alone.

    Exit 0 when the report is the same to the byte, 1 when not. With --policy: what that policy would have decided, with
    the exit code that `gate` would give.
    """
    history = open_history()
    record = history.get_run(run)
    if policy is not None:
        if report is not None:
            raise UsageError("option-conflict", "--report is compared with the run's own decision; leave --policy out.")
        return _under_policy(history, record, policy, as_json)
    from q36eval.app.reviewing.replaying import earlier_decision, same_decision
    from q36eval.app.reviewing.replaying import replay as decide_again

    replayed = decide_again(history, record)
    text = None if report is None else _text_of(report)
    elsewhere = None if text is None else same_decision(text, replayed.again)
    earlier = None if text is None or elsewhere else earlier_decision(history, record, text)
    as_kept = replayed.identical and elsewhere is not False
    if as_json:
        print_json(
            {
                "run": record.id,
                "identical": as_kept,
                "same_verdicts": replayed.same_verdicts,
                "sha256": replayed.sha256,
                "file_identical": elsewhere,
                "file_decided_until": None if earlier is None else earlier.replaced.isoformat(),
                "differences": replayed.differences,
                "versions": _other_versions(record),
            }
        )
    else:
        _print_replay(replayed)
        if report is not None:
            _print_file(report, elsewhere is True, earlier)
    return int(ExitCode.PASS if as_kept else ExitCode.FAIL)


def _text_of(report: Path) -> str:
    """The file's text, byte for byte: ours are ASCII, and what is not is none of ours."""
    try:
        return report.read_bytes().decode("latin-1")
    except OSError as error:
        raise UsageError("file-unreadable", f"The report {report} cannot be read: {error.strerror}.") from error


def _print_file(report: Path, same: bool, earlier: "Decision | None") -> None:
    from q36eval.app.cli.tables import print_plain

    if same:
        print_plain(f"{report} is that report too.")
    elif earlier is None:
        print_plain(f"{report} is another report: its bytes differ.")
    else:
        print_plain(
            f"{report} is the report of an earlier decision over this run, to the byte: {earlier.report.headline}, "
            f"which stood until {earlier.replaced:%Y-%m-%d %H:%M} UTC. A later decision replaced it."
        )


def _print_replay(replayed: "Replay") -> None:
    from q36eval.app.cli.tables import print_plain

    run = replayed.run
    assert run.report is not None, "a replay has a report"
    if replayed.identical:
        print_plain(f"Run {run.id} of {run.branch}, decided again from history: {run.report.headline}.")
        print(
            f"The JSON report is the same to the byte: {len(replayed.again.encode())} bytes, SHA-256 {replayed.sha256}."
        )
    else:
        print_plain(
            f"Run {run.id} of {run.branch}, decided again from history, does not give the report that was kept:"
        )
        _print_lines(replayed.differences)
        if replayed.differs_in_rounding_only:
            print("Only last digits differ, and every verdict is the same: the arithmetic of another version.")
        elif replayed.same_verdicts:
            print("Every verdict is the same: of the whole, of every lane and of every criterion.")
        _print_lines(_other_versions(run))


def _print_lines(lines: list[str]) -> None:
    from q36eval.reports.text import plain

    for line in lines[:SHOWN]:
        print(f"  {plain(line)}")
    if len(lines) > SHOWN:
        print(f"  and {len(lines) - SHOWN} more; --json lists them all")


def _other_versions(run: "RunRecord") -> list[str]:
    """The packages and the commit that differ between the run's decision and this program."""

    now, then = provenance(Paths.default().repository), run.provenance
    packages = then.get("packages") or {}
    pairs = [(name, packages.get(name), version) for name, version in now["packages"].items()]
    pairs += [("Python", then.get("python"), now["python"]), ("commit", then.get("git_commit"), now["git_commit"])]
    return [f"{name}: {was} then, {here} now" for name, was, here in pairs if was is not None and was != here]


def _under_policy(history: "History", record: "RunRecord", policy: str, as_json: bool) -> int:
    from q36eval.app.reviewing.replaying import retry

    paths = Paths.default()
    retrial = retry(history, record, load_policy(policy, load_family(None, paths), paths))
    if as_json:
        print_json(json.loads(retrial.model_dump_json()))
    else:
        _print_retrial(retrial, record)
    return retrial.report.exit_code


def _print_retrial(retrial: "Retrial", record: "RunRecord") -> None:
    from q36eval.reports.text import plain

    report = retrial.report
    was = (
        "it was never judged" if retrial.headline_was is None else f"{retrial.headline_was} under {retrial.policy_was}"
    )
    lines = [f"{report.headline}  run {retrial.run_id} of {retrial.branch} under policy {report.policy} ({was})"]
    for lane in report.lanes:
        decided_by = f", decided by {', '.join(lane.decisive)}" if lane.decisive else ""
        lines.append(f"{lane.lane}: {lane.headline}{decided_by}")
    names = {result.id: result.name for result in report.criteria}
    for one in retrial.changes:
        change = f"{_held(one.was, one.margin_was)} -> {_held(one.now, one.margin_now)}"
        lines.append(f"{names.get(one.id, one.id)}: {change}: {one.reason}")
    lines.append(f"Judged as before, by the same margin: {retrial.unchanged} of {len(report.criteria)} criteria.")
    if record.circumstances is not None:
        lines.append(f"Waivers and the blessed run are those of {record.circumstances.on}.")
    if retrial.asked_short and report.exit_code != ExitCode.PASS:
        lines.append("The run stopped early, once its own policy was decided; gate --exhaustive evaluates everything.")
    for line in lines:
        print(plain(line))


def _held(verdict: str | None, margin: str | None) -> str:
    return "not judged" if verdict is None else f"{verdict} ({margin})"
