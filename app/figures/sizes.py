"""Branches of a family by KL and size, from comparable runs, for choosing one to publish. Reads history."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from q36eval.drift.series import why_apart
from q36eval.gate.declaration import recorded_policy_sha256
from q36eval.history import History, RunRecord
from q36eval.history.records import SeriesPoint
from q36eval.provenance import STORED
from q36eval.records import Verdict
from q36eval.reports.size_plot import SizedBranch

KL = "kl.kl_divergence[all]"
LOOKED_AT = 20
"""Newest runs of each other branch."""


@dataclass(frozen=True)
class Sizes:
    """The branches that compare with a run, and by name why each other one of its family does not."""

    branches: tuple[SizedBranch, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


def family_sizes(history: History, run: RunRecord) -> Sizes:
    """The run's branch and the others of its family, each by its newest gate that compares with the run: under the same
    policy, on the same texts, against the same reference, by the same engine."""
    base = next((point for point in _judged(history, run.family, run.branch) if point.run.id == run.id), None)
    if base is None:
        return Sizes()
    branches, left_out = [], {}
    for name in sorted({of.branch for of in history.branches() if of.family == run.family}):
        points = [base] if name == run.branch else _judged(history, run.family, name, newest=LOOKED_AT)
        why = "no gate measured its KL"
        for point in points:
            found = _compared(history, run, base, point)
            if isinstance(found, SizedBranch):
                branches.append(found)
                break
            why = why if point is not points[0] else found
        else:
            left_out[name] = why
    return Sizes(tuple(branches), left_out)


def _judged(history: History, family: str, branch: str, newest: int | None = None) -> list[SeriesPoint]:
    """The KL of each gate among so many runs of a branch, the newest first."""
    series = history.metric_series(branch, family, [KL], newest)
    return [point for point in series[::-1] if point.run.verdict is not None]


def _compared(history: History, run: RunRecord, base: SeriesPoint, point: SeriesPoint) -> SizedBranch | str:
    """A branch by one of its gates, or why that does not compare."""
    apart = why_apart(base, point)
    if apart:
        return apart[0]
    other = run if point is base else history.get_run(point.run.id)
    policy = recorded_policy_sha256(run.policy)
    if policy is None or recorded_policy_sha256(other.policy) != policy:
        return "judged under another policy"
    stored, bounds = other.provenance.get(STORED), point.effect_interval
    if not isinstance(stored, dict) or not stored.get("values"):
        return "its gate did not record the size of the weights"
    size = {"stored_bytes": int(stored["bytes"]), "values": int(stored["values"])}
    verdict = other.verdict or Verdict.NOT_JUDGED
    return SizedBranch(other.branch, other.id, verdict, point.value, bounds.lower, bounds.upper, **size)
