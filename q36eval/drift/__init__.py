"""Drift: is a branch's newest run worse than the blessed run beyond noise, since when, and with what? Pure.

`series` decides which runs compare with the blessed one, `paired` compares them item by item, `verdicts` gives states
and sentences, `records` is what is reported. It may import `q36eval.records`, `q36eval.gate`, `q36eval.stats` and the
records of `q36eval.history`.
"""

from q36eval.drift.paired import ALPHA
from q36eval.drift.records import (
    BranchDrift,
    DriftPoint,
    DriftState,
    MetricDrift,
)
from q36eval.drift.verdicts import branch_drift, drift

__all__ = [
    "ALPHA",
    "BranchDrift",
    "DriftPoint",
    "DriftState",
    "MetricDrift",
    "branch_drift",
    "drift",
]
