"""What was measured, kept: runs, measurements, items, blessings, waivers and signatures, in SQLite."""

from q36eval.history.records import (
    Blessing,
    BranchSummary,
    Decision,
    RunFilter,
    RunRecord,
    RunState,
    RunSummary,
    SeriesPoint,
    SeriesRun,
    WaiverRecord,
)
from q36eval.history.store import History

__all__ = [
    "Blessing",
    "BranchSummary",
    "Decision",
    "History",
    "RunFilter",
    "RunRecord",
    "RunState",
    "RunSummary",
    "SeriesPoint",
    "SeriesRun",
    "WaiverRecord",
]
