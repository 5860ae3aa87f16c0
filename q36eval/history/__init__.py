"""What was measured, kept: runs, measurements, items, blessings, waivers and signatures, in SQLite."""

from q36eval.history.drift import DriftPoint, DriftState, MetricDrift, drift
from q36eval.history.records import Blessing, Decision, RunRecord, RunState, SeriesPoint, WaiverRecord
from q36eval.history.store import History

__all__ = [
    "Blessing",
    "Decision",
    "DriftPoint",
    "DriftState",
    "History",
    "MetricDrift",
    "RunRecord",
    "RunState",
    "SeriesPoint",
    "WaiverRecord",
    "drift",
]
