"""`q36eval drift`: whether a branch moved over its runs, since when, and with what."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import FamilyOption, JsonOption, OneBranch, open_history, print_json
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode

if TYPE_CHECKING:
    from q36eval.drift import AgainstBlessed, BranchDrift, MetricDrift

SHOWN = 12


def drift(
    branch: OneBranch,
    family: FamilyOption = None,
    metric: Annotated[str | None, typer.Option(help="Only metrics whose key holds this.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Watch all that was measured, not only what the policy judges.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Has a branch moved? 0: stable, or better; 1: drifting for the worse; 3: too few runs, or they do not compare.

    Each metric that the policy judges is followed over all runs of the branch and held against the blessed one.
    """
    from app.drifting import drift_of
    from app.targets import load_family

    chosen = load_family(family, Paths.default())
    found = drift_of(open_history(), chosen.name, branch, containing=metric, everything=everything)
    code = _exit_code(found.drift)
    if as_json:
        body: dict[str, Any] = json.loads(found.drift.model_dump_json())
        body["against_blessed"] = {key: json.loads(one.model_dump_json()) for key, one in found.against.items()}
        body["exit_code"] = int(code)
        print_json(body)
    else:
        _print(found.drift, found.against)
    return int(code)


def _exit_code(found: "BranchDrift") -> ExitCode:
    from q36eval.drift import DriftState

    if found.state is DriftState.DRIFTING:
        return ExitCode.FAIL if found.worse else ExitCode.PASS
    return ExitCode.PASS if found.state is DriftState.STABLE else ExitCode.INCONCLUSIVE


def _print(found: "BranchDrift", against: "dict[str, AgainstBlessed]") -> None:
    from rich.console import Console

    from app.cli.tables import plain_table, print_plain

    state = found.state.value.replace("_", " ").upper()
    print_plain(f"{state}  {found.branch} of {found.family}: {found.statement}")
    if not found.metrics:
        print_plain(f"No finished run measured it; q36eval gate --branch {found.branch} makes one.")
        return
    print_plain(
        f"{found.runs} runs, blessed: {found.blessed_run_id or 'none'}. {found.watched} metrics watched: while nothing "
        f"changes, one false alarm of all of them in {found.in_control_run_length:,.0f} runs, or fewer."
    )
    shown = _first([metric for metric in found.metrics if metric.watched])
    rows = [[one.key, _runs(one), _last(one), one.statement, _against(against.get(one.key))] for one in shown[:SHOWN]]
    columns = ("metric", "runs", "last", "state", "paired with the blessed run")
    Console().print(plain_table(columns, rows, [1, 2]))
    if len(shown) > SHOWN:
        print_plain(f"and {len(shown) - SHOWN} more; --metric TEXT picks some, --json lists all")


def _first(metrics: "list[MetricDrift]") -> "list[MetricDrift]":
    """Those that drift for the worse first, then whatever is not stable."""
    from q36eval.drift import DriftState

    order = (DriftState.DRIFTING, DriftState.INCOMPARABLE, DriftState.TOO_FEW_RUNS, DriftState.STABLE)
    return sorted(metrics, key=lambda metric: (order.index(metric.state), not metric.worse, metric.key))


def _runs(metric: "MetricDrift") -> str:
    return str(sum(point.comparable for point in metric.points))


def _last(metric: "MetricDrift") -> str:
    return f"{metric.points[-1].effect:.4g}"


def _against(found: "AgainstBlessed | None") -> str:
    if found is None:
        return ""
    if found.interval is None:
        return found.note
    low, high = found.interval.lower, found.interval.upper
    if found.no_change == 1.0:
        return f"x {found.effect:.4g} [{low:.4g}, {high:.4g}]"
    return f"{found.effect:+.3g} [{low:+.3g}, {high:+.3g}]"
