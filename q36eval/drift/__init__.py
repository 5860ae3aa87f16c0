"""Drift: has a metric of a branch moved over its runs, since when, and with what? Pure.

`lines` lays runs out that compare with each other, `monitoring` follows them through the `charts` and cuts them into
levels, `judging` says it in states and sentences, `records` is what is reported. History keeps findings under
`records.FINDINGS_VERSION`: whoever changes a figure or a word here raises it. It may import `q36eval.records`,
`q36eval.gate` and the records of `q36eval.history`, numpy and scipy.
"""

from q36eval.drift.charts import IN_CONTROL_RUN_LENGTH
from q36eval.drift.records import (
    AgainstBlessed,
    BranchDrift,
    DeploymentChange,
    DriftPoint,
    DriftState,
    MetricDrift,
    pair_with_blessed,
)
from q36eval.drift.verdicts import FEWEST_RUNS, branch_drift, drift

__all__ = [
    "FEWEST_RUNS",
    "IN_CONTROL_RUN_LENGTH",
    "AgainstBlessed",
    "BranchDrift",
    "DeploymentChange",
    "DriftPoint",
    "DriftState",
    "MetricDrift",
    "branch_drift",
    "drift",
    "pair_with_blessed",
]
