"""What was measured, kept: runs, measurements, items, blessings and waivers, in SQLite."""

from q36eval.history.drift import DriftPoint, DriftState, MetricDrift, drift
from q36eval.history.records import Blessing, RunRecord, RunState, SeriesPoint
from q36eval.history.store import History

__all__ = [
    "Blessing",
    "DriftPoint",
    "DriftState",
    "History",
    "MetricDrift",
    "RunRecord",
    "RunState",
    "SeriesPoint",
    "drift",
]
