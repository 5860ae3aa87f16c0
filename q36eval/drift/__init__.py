"""Drift: has a metric of a branch moved over its runs, since when, and with what? Pure."""

from q36eval.drift.records import BranchDrift, DriftPoint, DriftState, MetricDrift

__all__ = ["BranchDrift", "DriftPoint", "DriftState", "MetricDrift"]
