"""Drift: has a metric of a branch moved over its runs, since when, and with what? Pure."""

from q36eval.drift.against import AgainstBlessed, pair_with_blessed
from q36eval.drift.judging import FEWEST_RUNS, branch_drift, drift
from q36eval.drift.limits import IN_CONTROL_RUN_LENGTH
from q36eval.drift.records import BranchDrift, DeploymentChange, DriftPoint, DriftState, MetricDrift

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
