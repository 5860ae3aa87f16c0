"""`q36eval drift`: whether a branch differs from its blessed run beyond noise, since when, and since which change."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from q36eval.app.cli.options import FamilyOption, JsonOption, Quiet, open_history, print_json
from q36eval.app.cli.tables import print_plain
from q36eval.app.targets import declared_family, recorded_family
from q36eval.config import Family
from q36eval.config.paths import Paths
from q36eval.errors import ExitCode, UsageError
from q36eval.metrics import metric_of_key

if TYPE_CHECKING:
    from q36eval.drift import BranchDrift
    from q36eval.history import History

SHOWN = 24
STATES = ("drifting", "incomparable", "not_blessed", "stable", "chart_only")
"""The states in the order of display."""

WORST_FIRST = (ExitCode.FAIL, ExitCode.INCONCLUSIVE, ExitCode.PASS)


def drift(
    branch: Annotated[
        str | None,
        typer.Option(
            "--branch",
            help="Branch name, folder or Hub name; all branches by default.",
        ),
    ] = None,
    family: FamilyOption = None,
    metric: Annotated[str | None, typer.Option(help="Only metrics whose key contains this.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also compare metrics that the policy does not judge; they decide nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Report whether a branch is worse than its blessed run.

    Exit codes: 0 stable or better, 1 drifting for the worse, 3 no blessed run or runs that do not compare. Each metric
    that the policy judges is paired with the blessed run, item by item. Without --branch, every branch of the family
    is reported, and the worst one that has a blessed run sets the exit code.
    """
    paths, history = Paths.default(), open_history()
    if branch is None:
        if metric is not None or everything:
            raise UsageError("option-missing", "--metric and --all need one branch; name it with --branch.")
        return _of_all(history, declared_family(family, paths), as_json)
    chosen, name = recorded_family(family, branch, paths, history)
    return _of_one(history, chosen, name, metric, everything, as_json)


def _of_all(history: "History", family: Family, as_json: bool) -> int:
    from q36eval.run.drift import drift_of

    drifts = [drift_of(history, *key) for key in sorted(history.fingerprints(family.name))]
    drifts.sort(key=lambda one: (one.blessed_run_id is None, WORST_FIRST.index(_exit_code(one))))
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
    from q36eval.run.drift import drift_of

    found = drift_of(history, family.name, branch, containing=metric, everything=everything)
    if not found.metrics:
        _check_known(history, family, branch, metric, everything)
    code = _exit_code(found)
    if as_json:
        print_json(json.loads(found.model_dump_json()) | {"exit_code": int(code)})
    else:
        _print(found)
    return int(code)


def _check_known(history: "History", family: Family, branch: str, metric: str | None, everything: bool) -> None:
    """Refuse unknown names: a typo is not "too few runs".

    Raises:
        UsageError: no such branch, or no figure whose key contains that.
    """
    from q36eval.app.names import closest

    keys = history.metric_keys(branch, family.name)
    names = {known.branch for known in history.branches() if known.family == family.name} | set(family.branches)
    if branch not in names:
        raise UsageError(
            "branch-unknown",
            f"{family.name} has no branch {branch!r}, nor a run of one; {closest(branch, sorted(names))}.",
        )
    if keys and metric is not None:
        unwatched = "" if everything else next((f"; --all also compares {key}" for key in keys if metric in key), "")
        raise UsageError("metric-unknown", f"No watched metric has a key that contains {metric!r}{unwatched}.")


def _exit_code(moved: "BranchDrift") -> ExitCode:
    from q36eval.drift import DriftState

    if moved.state is DriftState.DRIFTING:
        return ExitCode.FAIL if moved.worse else ExitCode.PASS
    return ExitCode.PASS if moved.state is DriftState.STABLE else ExitCode.INCONCLUSIVE


def _state(moved: "BranchDrift") -> str:
    return moved.state.value.replace("_", " ").upper()


def _print(moved: "BranchDrift") -> None:
    from q36eval.drift import ALPHA

    print_plain(f"{_state(moved)} {moved.branch} of {moved.family}: {moved.statement}")
    if Quiet.wanted:
        return
    if not moved.metrics:
        print_plain(f"No finished run measured it; q36eval gate --branch {moved.branch} makes one.")
        return
    if moved.blessed_run_id is None:
        return
    print_plain(
        f"{moved.runs} runs, blessed run: {moved.blessed_run_id}. {moved.watched} metrics watched: a "
        f"comparison of runs that do not differ reports a drift in at most {ALPHA:.0%} of cases."
    )
    shown = sorted(
        moved.metrics, key=lambda one: (not one.watched, STATES.index(one.state.value), not one.worse, one.key)
    )
    for one in shown[:SHOWN]:
        metric, slice = metric_of_key(one.key)
        print_plain(f"  {metric.titled(slice)} ({one.key}): {one.statement.rstrip('.')}")
    if len(shown) > SHOWN:
        print_plain(f"  and {len(shown) - SHOWN} more; --metric TEXT picks some, --json lists all")
