"""`q36eval history`: the runs so far."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.history_compare import compare
from q36eval.app.cli.history_export import export, take_in
from q36eval.app.cli.history_gc import gc
from q36eval.app.cli.history_list import list_runs
from q36eval.app.cli.history_replay import show_replay
from q36eval.app.cli.history_status import status
from q36eval.app.cli.options import JsonOption, RunArgument, open_history, print_json
from q36eval.app.cli.report_formats import document_of
from q36eval.app.cli.tables import print_parts, print_plain
from q36eval.errors import ExitCode

if TYPE_CHECKING:
    from q36eval.history import History, RunRecord

SHOWN = 18
"""Figures of a run without a verdict that fit one screen."""

app = typer.Typer(no_args_is_help=True, help="List, show, compare, export and clean up past runs.")
app.command("list")(list_runs)
app.command("status")(status)
app.command("compare")(compare)
app.command("export")(export)
app.command("import")(take_in)
app.command("gc")(gc)


@app.command("show")
def show(
    run: RunArgument,
    replay: Annotated[
        bool, typer.Option("--replay", help="Decide it again from history instead; exit 1 when its report differs.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Show one run: its criteria, or what it measured."""
    history = open_history()
    record = history.get_run(run)
    if replay:
        return show_replay(history, record, as_json)
    if as_json:
        body = json.loads(record.model_dump_json())
        body["measurements"] = [
            json.loads(m.model_dump_json(exclude={"clusters"})) for m in history.measurements(record.id)
        ]
        body["failures"] = [failure.model_dump(mode="json") for failure in history.failures(record.id)]
        body["sign_offs"] = [sign_off.model_dump(mode="json") for sign_off in history.sign_offs(record.id)]
        body["blessings"] = [blessing.model_dump(mode="json") for blessing in history.blessings_of_run(record.id)]
        body["earlier_decisions"] = [
            json.loads(decision.model_dump_json()) for decision in history.earlier_decisions(record.id)
        ]
        body["events"] = [event.model_dump(mode="json") for event in history.events(record.id)]
        print_json(body)
        return int(ExitCode.PASS)
    from q36eval.reports import to_console

    if record.report is not None:
        print_parts([to_console(document_of(record, history), details=False), *_review_lines(history, record)])
        return int(ExitCode.PASS)
    print_plain(f"Run {record.id} of {record.branch}: {record.state}, no verdict.")
    figures = history.measurements(record.id)
    whole = sorted((m for m in figures if m.slice == "all"), key=lambda m: "noise_floor" in m.metric)[:SHOWN]
    for m in whole:
        interval = f"[{m.effect_interval.lower:.4g}, {m.effect_interval.upper:.4g}]"
        print_plain(f"  {m.key}: {m.value:.4g} {m.unit}, effect {m.effect:.4g} {interval}, {m.counts.scored} scored")
    if len(figures) > len(whole):
        print_plain(f"  and {len(figures) - len(whole)} more figures: q36eval history show {record.id} --json")
    return int(ExitCode.PASS)


def _review_lines(history: "History", run: "RunRecord") -> list[str]:
    """The other inputs of the verdict, the signers, and earlier decisions."""
    from q36eval.inert_text import plain

    lines = []
    if run.imported is not None:
        lines.append(f"imported {run.imported:%Y-%m-%d %H:%M} from another history, and decided here by its evidence")
    if run.circumstances is not None:
        waivers = run.circumstances.waivers_from or "history"
        known = f"{len(run.circumstances.waivers)} waivers known from {waivers}"
        against = run.circumstances.blessed_run
        lines.append(f"decided on {run.circumstances.on}: {known}, blessed run {against or 'none'}")
    counted = () if run.report is None else run.report.signed_by
    for sign_off in history.sign_offs(run.id):
        stands = "" if sign_off in counted else " (not counted in this decision)"
        lines.append(f"signed by {sign_off.owner}, {sign_off.at:%Y-%m-%d %H:%M}: {sign_off.reason}{stands}")
    for blessing in history.blessings_of_run(run.id):
        stands = ""
        if blessing.revoked is not None:
            stands = f" (revoked {blessing.revoked:%Y-%m-%d} by {blessing.revoked_by}: {blessing.revoked_why})"
        lines.append(f"blessed by {blessing.owner}, {blessing.at:%Y-%m-%d %H:%M}: {blessing.reason}{stands}")
    for decision in history.earlier_decisions(run.id):
        lines.append(f"until {decision.replaced:%Y-%m-%d %H:%M} the verdict was {decision.report.headline}")
    return [plain(line) for line in lines]
