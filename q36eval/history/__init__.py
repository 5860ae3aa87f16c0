"""What was measured, kept: runs, measurements, items, blessings, waivers and signatures."""

from q36eval.history.records import (
    WATCHED,
    About,
    Blessing,
    BranchKey,
    BranchSummary,
    Decision,
    EventKind,
    RunEvent,
    RunFilter,
    RunProgress,
    RunRecord,
    RunState,
    RunSummary,
    SeriesRun,
    StandingVerdict,
    WaiverRecord,
    WholeRun,
)
from q36eval.history.store import History

__all__ = [
    "WATCHED",
    "About",
    "Blessing",
    "BranchKey",
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
    "SeriesRun",
    "StandingVerdict",
    "WaiverRecord",
    "WholeRun",
]
