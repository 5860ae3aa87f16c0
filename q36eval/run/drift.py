"""A branch's drift from history: its runs, its policy's measurements, and its blessed run."""

from collections.abc import Collection, Sequence
from functools import cache

from q36eval.drift import BranchDrift, MetricDrift, branch_drift, drift
from q36eval.history import History, RunFilter, RunState


def drift_of(
    history: History, family: str, branch: str, *, containing: str | None = None, everything: bool = False
) -> BranchDrift:
    """Drift of the measurements behind a branch's newest verdict; of all measurements without a verdict.

    With `everything` other metrics are compared, too, and decide nothing; `containing` selects keys that contain it.
    Nothing is written.
    """
    watched = judged_keys(history, family, branch)
    keys = None if watched is None or everything else sorted(watched)
    if containing is not None:
        keys = [key for key in keys or history.metric_keys(branch, family) if containing in key]
    blessing = next(iter(history.blessings(branch, family)), None)
    runs = history.series_runs(branch, family)  # before the figures, so that a run that ends meanwhile is complete
    series = history.metric_series(branch, family, keys)
    blessed = None if blessing is None else blessing.run_id
    return branch_drift(family, branch, series, cache(history.measurements), blessed, watched, runs, keys)


def standing_drift(history: History, family: str, branch: str) -> BranchDrift:
    """A branch's current state, its metrics without points."""
    return drift_of(history, family, branch).without_points()


def followed(history: History, standing: BranchDrift, keys: Sequence[str]) -> list[MetricDrift]:
    """Some metrics of a branch with their points, compared at the level shared by all watched ones."""
    family, branch = standing.family, standing.branch
    watched = judged_keys(history, family, branch) or {metric.key for metric in standing.metrics}
    runs = history.series_runs(branch, family)
    series = history.metric_series(branch, family, sorted(keys))
    return drift(series, cache(history.measurements), standing.blessed_run_id, watched, runs)


def judged_keys(history: History, family: str, branch: str) -> Collection[str] | None:
    """Keys of the measurements behind the branch's newest verdict; None without a verdict.

    If that verdict is of a server alone, those of the newest gate are included.
    """
    finished = RunFilter(family=family, branch=branch, state=RunState.FINISHED)
    judged = set[str]()
    for summary in history.summaries(finished, limit=RECENT):
        report = None if summary.verdict is None else history.get_run(summary.id).report
        if report is not None and not (judged and report.of_server_alone):
            judged |= {f"{one.probe}.{one.metric}[{one.slice}]" for one in report.criteria}
            if not report.of_server_alone:
                break
    return judged or None


RECENT = 100
"""The number of newest finished runs in which a verdict is searched."""
