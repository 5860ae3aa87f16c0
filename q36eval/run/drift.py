"""A branch's drift as history holds it: its runs, what its policy judges, and its blessed run."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import cache

import numpy
import scipy
from pydantic import ValidationError

from q36eval.drift import BranchDrift, MetricDrift, branch_drift, drift
from q36eval.drift.records import FINDINGS_VERSION
from q36eval.errors import StorageError
from q36eval.history import History, KeptDrift, RunFilter, RunState


def drift_of(
    history: History, family: str, branch: str, *, containing: str | None = None, everything: bool = False
) -> BranchDrift:
    """Drift of what a branch's newest verdict rests on; of all that was measured where it has none.

    By `everything` other metrics are compared as well and decide nothing; `containing` leaves only keys that hold it.
    Nothing is written.
    """
    watched = judged_keys(history, family, branch)
    keys = None if watched is None or everything else sorted(watched)
    if containing is not None:
        keys = [key for key in keys or history.metric_keys(branch, family) if containing in key]
    return _branch_drift(history, family, branch, watched, keys)


def standing_drift(history: History, family: str, branch: str) -> BranchDrift:
    """Where a branch stands, its metrics without points: as it was kept, else worked out anew, which takes a second."""
    key = (family, branch)
    kept = read_kept(history.fingerprints(*key).get(key), history.kept_drifts(*key).get(key))
    return kept or _standing(history, *key)


def read_kept(fingerprint: str | None, kept: KeptDrift | None) -> BranchDrift | None:
    """What was kept, if it is of what the branch is now (`History.fingerprints`) and of today's code."""
    if fingerprint is None or kept is None or kept.stand != _stand(fingerprint):
        return None
    try:
        return BranchDrift.model_validate_json(kept.found)
    except ValidationError:  # a figure beyond all numbers is none in JSON
        return None


def keep_drifts(history: History, family: str | None = None, branch: str | None = None) -> None:
    """Work out where that branch stands, or every one, and keep it for whoever reads it next; what is kept so stays.

    What hinders it, whatever that is, is no trouble of what was written before: a gate that ended gives its verdict.
    Whoever reads works it out anew, and then hears what the trouble is.
    """
    with suppress(Exception):
        kept = history.kept_drifts(family, branch)
        for key, fingerprint in history.fingerprints(family, branch).items():
            if read_kept(fingerprint, kept.get(key)) is None:
                try:
                    _keep(history, *key)
                except StorageError:  # held for long, or full: each of the others would wait as long in vain
                    return
                except Exception:  # one branch that cannot be read leaves the others theirs
                    continue


def _keep(history: History, family: str, branch: str) -> None:
    key = (family, branch)
    before = history.fingerprints(*key).get(key)
    standing = _standing(history, *key).model_dump_json()
    # what another process wrote meanwhile may be in it, or not; that one keeps its own
    if before is not None and history.fingerprints(*key).get(key) == before:
        history.keep_drift(*key, KeptDrift(stand=_stand(before), found=standing))


def followed(history: History, standing: BranchDrift, keys: Sequence[str]) -> list[MetricDrift]:
    """Some metrics of a branch with their points, compared at the level that all watched ones share."""
    family, branch = standing.family, standing.branch
    watched = judged_keys(history, family, branch) or {metric.key for metric in standing.metrics}
    runs = history.series_runs(branch, family)
    series = history.metric_series(branch, family, sorted(keys))
    return drift(series, cache(history.measurements), standing.blessed_run_id, watched, runs)


def judged_keys(history: History, family: str, branch: str) -> Collection[str] | None:
    """Keys of the measurements that the branch's newest verdict rests on; None where there is no verdict.

    Where that is of a server by itself, those of the newest gate as well.
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
"""Among how many of the newest finished runs a verdict is looked for."""


def _standing(history: History, family: str, branch: str) -> BranchDrift:
    watched = judged_keys(history, family, branch)
    keys = None if watched is None else sorted(watched)
    return _branch_drift(history, family, branch, watched, keys).without_points()


def _branch_drift(
    history: History, family: str, branch: str, watched: Collection[str] | None, keys: Sequence[str] | None
) -> BranchDrift:
    blessing = next(iter(history.blessings(branch, family)), None)
    runs = history.series_runs(branch, family)  # before the figures: a run that ends meanwhile lacks none
    series = history.metric_series(branch, family, keys)
    blessed = None if blessing is None else blessing.run_id
    return branch_drift(family, branch, series, cache(history.measurements), blessed, watched, runs, keys)


def _stand(fingerprint: str) -> str:
    """What a finding is of: the version of the findings, the libraries that count, the branch's runs as they are."""
    return f"findings {FINDINGS_VERSION}, numpy {numpy.__version__}, scipy {scipy.__version__}, runs {fingerprint}"
