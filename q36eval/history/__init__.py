"""What was measured, kept: runs, measurements, items, blessings, waivers and signatures, in SQLite."""

from q36eval.history.records import (
    About,
    Artifact,
    Blessing,
    BranchSummary,
    Decision,
    EventKind,
    RunEvent,
    RunFilter,
    RunProgress,
    RunRecord,
    RunState,
    RunSummary,
    SeriesPoint,
    SeriesRun,
    WaiverRecord,
    WholeRun,
)
from q36eval.history.store import History

__all__ = [
    "About",
    "Artifact",
    "Blessing",
    "BranchSummary",
    "Decision",
    "EventKind",
    "History",
    "RunEvent",
    "RunFilter",
    "RunProgress",
    "RunRecord",
    "RunState",
    "RunSummary",
    "SeriesPoint",
    "SeriesRun",
    "WaiverRecord",
    "WholeRun",
]
