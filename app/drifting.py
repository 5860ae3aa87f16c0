"""A branch's drift as history holds it: its runs, what its policy judges, and its blessed run. Nothing is written."""

from collections.abc import Collection
from dataclasses import dataclass, field

from q36eval.drift import AgainstBlessed, BranchDrift, MetricDrift, branch_drift, pair_with_blessed
from q36eval.history import History, RunFilter
from q36eval.records import Measurement


@dataclass(frozen=True)
class FoundDrift:
    """A branch's drift; `against` holds its watched metrics beside the blessed run, by key, where both compare."""

    drift: BranchDrift
    against: dict[str, AgainstBlessed] = field(default_factory=dict)


def drift_of(
    history: History,
    family: str,
    branch: str,
    *,
    containing: str | None = None,
    everything: bool = False,
    paired: bool = True,
    beside: Collection[str] | None = None,
) -> FoundDrift:
    """Drift of what a branch's newest verdict rests on; of all that was measured where it has none, or if asked.

    `containing` leaves only keys that hold it. `paired` holds the watched metrics against the blessed run, which reads
    the evidence of two runs in full. `beside` are further keys that are read and decide nothing.
    """
    blessing = next(iter(history.blessings(branch, family)), None)
    blessed = None if blessing is None else blessing.run_id
    watched = None if everything else judged_keys(history, family, branch)
    keys = None if watched is None else sorted({*watched, *(beside or ())})
    if containing is not None:
        keys = [key for key in keys or history.metric_keys(branch, family) if containing in key]
    runs = history.series_runs(branch, family)  # before the figures: a run that ends meanwhile lacks none
    found = branch_drift(family, branch, history.metric_series(branch, family, keys), blessed, watched, runs)
    against = _against(history, found) if paired and blessed is not None else {}
    return FoundDrift(found, against)


def judged_keys(history: History, family: str, branch: str) -> Collection[str] | None:
    """Keys of the measurements that the branch's newest verdict rests on; None where there is no verdict."""
    for summary in history.summaries(RunFilter(family=family, branch=branch), limit=RECENT):
        if summary.verdict is not None:
            report = history.get_run(summary.id).report
            if report is not None:
                return {f"{one.probe}.{one.metric}[{one.slice}]" for one in report.criteria}
    return None


RECENT = 100
"""Among how many of the newest runs a verdict is looked for."""


def _against(history: History, found: BranchDrift) -> dict[str, AgainstBlessed]:
    assert found.blessed_run_id is not None
    known: dict[str, dict[str, list[Measurement]]] = {}

    def of(run_id: str) -> dict[str, list[Measurement]]:
        if run_id not in known:
            known[run_id] = {}
            for measurement in history.measurements(run_id):
                known[run_id].setdefault(measurement.key, []).append(measurement)
        return known[run_id]

    against = {}
    for metric in found.metrics:
        newest = metric.points[-1].run_id
        if metric.watched and _compares(metric, found.blessed_run_id) and metric.key in of(newest):
            one, blessed = of(newest)[metric.key][-1], of(found.blessed_run_id).get(metric.key, [])
            against[metric.key] = pair_with_blessed(newest, one, found.blessed_run_id, blessed)
    return against


def _compares(metric: MetricDrift, blessed_run_id: str) -> bool:
    """Whether the blessed run compares with the newest, and is another run."""
    earlier = metric.points[:-1]
    return any(point.run_id == blessed_run_id and point.comparable for point in earlier)
