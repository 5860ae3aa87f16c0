"""`q36eval drift`: whether a branch moved over its runs, since when, and with what."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli import completing
from q36eval.app.cli.options import FamilyOption, JsonOption, Quiet, open_history, print_json
from q36eval.app.targets import load_family
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.metrics import metric_of_key

if TYPE_CHECKING:
    from q36eval.drift import AgainstBlessed, BranchDrift, MetricDrift
    from q36eval.history import History

SHOWN = 12
WORST_FIRST = (ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.PASS)


def drift(
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="Branch name, or path of a checkpoint folder; all branches by default.",
            autocompletion=completing.branches,
        ),
    ] = None,
    family: FamilyOption = None,
    metric: Annotated[str | None, typer.Option(help="Only metrics whose key contains this.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Watch every metric, not only those that the policy judges.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Report whether a branch has drifted over its runs.

    Exit codes: 0 stable or better, 1 drifting for the worse, 3 too few runs or runs that do not compare. Each metric
    that the policy judges is followed over all runs of the branch and compared with the blessed run. Without --branch,
    every branch of the family is reported, and the worst one sets the exit code.
    """
    chosen, history = load_family(family, Paths.default()), open_history()
    if branch is None:
        if metric is not None or everything:
            raise UsageError("option-missing", "--metric and --all need one branch; name it with --branch.")
        return _of_all(history, chosen, as_json)
    return _of_one(history, chosen, branch, metric, everything, as_json)


def _of_all(history: "History", family: Family, as_json: bool) -> int:
    from q36eval.app.cli.tables import print_plain
    from q36eval.run.drift import keep_drifts, standing_drift

    keep_drifts(history, family.name)
    drifts = [standing_drift(history, *key) for key in sorted(history.fingerprints(family.name))]
    drifts.sort(key=lambda one: WORST_FIRST.index(_exit_code(one)))
    code = _exit_code(drifts[0]) if drifts else ExitCode.INCONCLUSIVE
    if as_json:
        branches = [json.loads(one.model_dump_json(exclude={"metrics"})) for one in drifts]
        print_json({"branches": branches, "exit_code": int(code)})
        return int(code)
    for one in drifts:
        print_plain(f"{_state(one)} {one.branch}: {one.statement}")
    if not drifts:
        print_plain(f"No finished run of {family.name}; q36eval gate --branch NAME makes one.")
    return int(code)


def _of_one(
    history: "History", family: Family, branch: str, metric: str | None, everything: bool, as_json: bool
) -> int:
    from q36eval.run.drift import drift_of, keep_drifts

    followed = drift_of(history, family.name, branch, containing=metric, everything=everything)
    if not followed.drift.metrics:
        _check_known(history, family, branch, metric, everything)
    code = _exit_code(followed.drift)
    if as_json:
        body: dict[str, Any] = json.loads(followed.drift.model_dump_json())
        body["against_blessed"] = {key: json.loads(one.model_dump_json()) for key, one in followed.against.items()}
        body["exit_code"] = int(code)
        print_json(body)
    else:
        _print(followed.drift, followed.against)
    keep_drifts(history, family.name, branch)  # last: whoever holds the database for long delays no answer
    return int(code)


def _check_known(history: "History", family: Family, branch: str, metric: str | None, everything: bool) -> None:
    """Refuse names that nothing bears: a slip of the pen is not "too few runs".

    Raises:
        UsageError: there is no such branch, or no figure whose key holds that.
    """
    from q36eval.app.reviewing.waiver_files import closest

    keys = history.metric_keys(branch, family.name)
    names = {known.branch for known in history.branches() if known.family == family.name} | set(family.branches)
    if branch not in names:
        raise UsageError(
            "branch-unknown",
            f"{family.name} has no branch {branch!r}, nor a run of one; {closest(branch, sorted(names))}.",
        )
    if keys and metric is not None:
        unwatched = "" if everything else next((f"; --all also follows {key}" for key in keys if metric in key), "")
        raise UsageError("metric-unknown", f"No watched metric has a key that contains {metric!r}{unwatched}.")


def _exit_code(moved: "BranchDrift") -> ExitCode:
    from q36eval.drift import DriftState

    if moved.state is DriftState.DRIFTING:
        return ExitCode.FAIL if moved.worse else ExitCode.PASS
    return ExitCode.PASS if moved.state is DriftState.STABLE else ExitCode.INCONCLUSIVE


def _state(moved: "BranchDrift") -> str:
    return moved.state.value.replace("_", " ").upper()


def _print(moved: "BranchDrift", against: "dict[str, AgainstBlessed]") -> None:
    from q36eval.app.cli.tables import print_plain

    print_plain(f"{_state(moved)} {moved.branch} of {moved.family}: {moved.statement}")
    if Quiet.wanted:
        return
    if not moved.metrics:
        print_plain(f"No finished run measured it; q36eval gate --branch {moved.branch} makes one.")
        return
    print_plain(
        f"{moved.runs} runs, blessed run: {moved.blessed_run_id or 'none'}. {moved.watched} metrics watched: at most "
        f"one false alarm in {moved.in_control_run_length:,.0f} runs, if nothing changes and runs scatter normally and "
        f"independently."
    )
    watched = [metric for metric in moved.metrics if metric.watched]
    for heading, metrics in _unsettled(watched):
        lines = [f"{figure_name(one.key)}{_levels(one)}{_against(against.get(one.key))}" for one in metrics]
        _print_group(heading, lines)
    stable = [metric for metric in watched if metric.state.value == "stable"]
    if stable:
        lines = [f"{figure_name(one.key)}: {one.statement.removeprefix('Stable ').rstrip('.')}" for one in stable]
        beside = [_against(against.get(one.key)) for one in stable]
        _print_group("Stable:", [line + more for line, more in zip(lines, beside, strict=True)])


def _print_group(heading: str, lines: list[str]) -> None:
    from q36eval.app.cli.tables import print_plain

    print()
    print_plain(heading)
    for line in lines[:SHOWN]:
        print_plain(f"  {line}")
    if len(lines) > SHOWN:
        print_plain(f"  and {len(lines) - SHOWN} more; --metric TEXT picks some, --json lists all")


def _unsettled(metrics: "list[MetricDrift]") -> "list[tuple[str, list[MetricDrift]]]":
    """All that is not stable, by what is said of it; what drifts for the worse first."""
    from q36eval.drift import DriftState

    order = (DriftState.DRIFTING, DriftState.INCOMPARABLE, DriftState.TOO_FEW_RUNS)
    grouped: dict[str, list[MetricDrift]] = {}
    for metric in sorted(metrics, key=lambda one: (one.state is not DriftState.DRIFTING, not one.worse, one.key)):
        if metric.state in order:
            grouped.setdefault(_heading(metric), []).append(metric)
    return sorted(grouped.items(), key=lambda group: order.index(group[1][0].state))


def _heading(metric: "MetricDrift") -> str:
    if metric.change is None:
        return metric.statement
    way = "worse" if metric.worse else "better"
    return f"Drifting for the {way} since run {metric.since_run_id}; changed there: {metric.what_changed}."


def figure_name(key: str) -> str:
    """A figure's title beside its key."""
    metric, slice = metric_of_key(key)
    return f"{metric.titled(slice)} ({key})"


def _levels(metric: "MetricDrift") -> str:
    if metric.change is None:
        return ""
    return f": {metric.accepted_level:.4g} -> {metric.level:.4g} ({metric.change:+.3g} {metric.unit})"


def _against(paired: "AgainstBlessed | None") -> str:
    """The newest run beside the blessed one, item by item."""
    if paired is None or paired.interval is None:
        return ""
    low, high = paired.interval.lower, paired.interval.upper
    if paired.no_change == 1.0:
        return f"; newest / blessed run {paired.effect:.4g} [{low:.4g}, {high:.4g}]"
    return f"; newest less blessed run {paired.effect:+.3g} [{low:+.3g}, {high:+.3g}]"
