"""A run decided again, from history alone: `history show --replay`, and `report --policy`."""

import json
from typing import TYPE_CHECKING

from q36eval.app.cli.options import print_json
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode
from q36eval.provenance import provenance

if TYPE_CHECKING:
    from q36eval.app.reviewing.replay import Replay, Retrial
    from q36eval.history import History, RunRecord

SHOWN = 20


def show_replay(history: "History", record: "RunRecord", as_json: bool) -> int:
    """Decide a run again, and print whether the report is the same to the byte: exit 1 when not."""
    from q36eval.app.reviewing.replay import replay

    replayed = replay(history, record)
    if as_json:
        print_json(
            {
                "run": record.id,
                "identical": replayed.identical,
                "same_verdicts": replayed.same_verdicts,
                "sha256": replayed.sha256,
                "differences": replayed.differences,
                "versions": _other_versions(record),
            }
        )
    else:
        _print_replay(replayed)
    return int(ExitCode.PASS if replayed.identical else ExitCode.FAIL)


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
        if replayed.same_verdicts:
            print("Every verdict is the same: of the whole, of every lane and of every criterion.")
        _print_lines(_other_versions(run))


def _print_lines(lines: list[str]) -> None:
    from q36eval.inert_text import plain

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


def show_under_policy(history: "History", record: "RunRecord", policy: str, as_json: bool) -> int:
    """Print another policy's decision on a run, by lane; returns the exit code of such a gate."""
    from q36eval.app.policies.files import policy_file
    from q36eval.app.reviewing.replay import retry
    from q36eval.gate.policy_file import read_policy

    rules = read_policy(policy_file(policy, Paths.default()))
    judged = () if record.report is None else tuple(lane.lane for lane in record.report.lanes)
    retrial = retry(history, record, rules.for_lanes(judged))
    if as_json:
        print_json(json.loads(retrial.model_dump_json()))
    else:
        _print_retrial(retrial, record)
    return retrial.report.exit_code


def _print_retrial(retrial: "Retrial", record: "RunRecord") -> None:
    from q36eval.inert_text import plain

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
