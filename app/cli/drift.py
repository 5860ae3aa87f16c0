"""`q36eval drift`: whether a branch moved over its runs, since when, and with what."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from q36eval.app.cli import completion
from q36eval.app.cli.options import FamilyOption, JsonOption, Quiet, open_history, print_json
from q36eval.app.targets import kept_name, load_family
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.metrics import metric_of_key

if TYPE_CHECKING:
    from q36eval.drift import AgainstBlessed, BranchDrift
    from q36eval.history import History

SHOWN = 24
STATES = ("drifting", "incomparable", "too_few_runs", "stable")
"""In the order in which metrics are shown."""

WORST_FIRST = (ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.PASS)


def drift(
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="Branch name, or path of a checkpoint folder; all branches by default.",
            autocompletion=completion.branches,
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
    return _of_one(history, chosen, kept_name(branch), metric, everything, as_json)


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
    watched = sorted(
        (metric for metric in moved.metrics if metric.watched),
        key=lambda one: (STATES.index(one.state.value), not one.worse, one.key),
    )
    for one in watched[:SHOWN]:
        print_plain(f"  {figure_name(one.key)}: {one.statement.rstrip('.')}{_against(against.get(one.key))}")
    if len(watched) > SHOWN:
        print_plain(f"  and {len(watched) - SHOWN} more; --metric TEXT picks some, --json lists all")


def figure_name(key: str) -> str:
    """A figure's title beside its key."""
    metric, slice = metric_of_key(key)
    return f"{metric.titled(slice)} ({key})"


def _against(paired: "AgainstBlessed | None") -> str:
    """The newest run beside the blessed one, item by item."""
    if paired is None or paired.interval is None:
        return ""
    low, high = paired.interval.lower, paired.interval.upper
    if paired.no_change == 1.0:
        return f"; newest / blessed run {paired.effect:.4g} [{low:.4g}, {high:.4g}]"
    return f"; newest less blessed run {paired.effect:+.3g} [{low:+.3g}, {high:+.3g}]"
