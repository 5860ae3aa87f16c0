"""What the overview says of each branch: latest verdict per lane, freshness, blessing and what needs a person. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from q36eval.drift import DriftState, MetricDrift
from q36eval.gate.report import CriterionVerdict, GateReport, LaneResult, Waiver
from q36eval.history import Blessing, RunRecord, RunState
from q36eval.records import Lane, Verdict

STALE_AFTER = timedelta(days=30)
EXPIRES_SOON = timedelta(days=14)

BranchKey = tuple[str, str]
"""Family and branch."""


@dataclass(frozen=True)
class BranchRow:
    """One line of the overview. `judged` is the newest run with a verdict, `newest` the newest of all."""

    family: str
    branch: str
    newest: RunRecord
    judged: RunRecord | None
    lanes: dict[Lane, LaneResult | None]
    freshness: str
    blessing: str
    needs: tuple[str, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The latest overall verdict."""
        return None if self.judged is None else self.judged.verdict


@dataclass(frozen=True)
class Review:
    """What people decided about a branch, and what moved since."""

    blessing: Blessing | None = None
    waivers: tuple[Waiver, ...] = ()
    drift: tuple[MetricDrift, ...] = ()


def branches_of(runs: Sequence[RunRecord]) -> dict[BranchKey, list[RunRecord]]:
    """Runs by branch, newest first, branches sorted by name."""
    found: dict[BranchKey, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: (run.started, run.id), reverse=True):
        found.setdefault((run.family, run.branch), []).append(run)
    return dict(sorted(found.items()))


def overview(runs: Sequence[RunRecord], reviews: Mapping[BranchKey, Review], now: datetime) -> list[BranchRow]:
    """One row per branch, sorted by family and name."""
    return [_row(key, of, reviews.get(key, Review()), now) for key, of in branches_of(runs).items()]


def age_text(since: datetime, now: datetime) -> str:
    """How long ago, in the unit a person would say."""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            n = seconds // size
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def _row(key: BranchKey, runs: list[RunRecord], review: Review, now: datetime) -> BranchRow:
    judged = next((run for run in runs if run.report is not None), None)
    report = None if judged is None else judged.report
    by_lane = {} if report is None else {lane.lane: lane for lane in report.lanes}
    return BranchRow(
        family=key[0],
        branch=key[1],
        newest=runs[0],
        judged=judged,
        lanes={lane: by_lane.get(lane) for lane in Lane},
        freshness="never judged" if judged is None else _freshness(judged, now),
        blessing=_blessing(review.blessing, judged, runs),
        needs=tuple(_needs(runs[0], judged, review, now)),
    )


def _freshness(judged: RunRecord, now: datetime) -> str:
    stale = now - judged.started > STALE_AFTER
    return f"judged {age_text(judged.started, now)}{' (stale)' if stale else ''}"


def _blessing(blessing: Blessing | None, judged: RunRecord | None, runs: list[RunRecord]) -> str:
    if blessing is None:
        return "not blessed"
    when = f"by {blessing.owner} on {blessing.at.astimezone(UTC):%Y-%m-%d}"
    if judged is not None and blessing.run_id == judged.id:
        return f"★ blessed {when}: this run"
    blessed = next((run for run in runs if run.id == blessing.run_id), None)
    if judged is None or blessed is None or judged.identity is None or blessed.identity is None:
        return f"★ blessed {when}: an earlier run"
    same = judged.identity.checkpoint_sha256 == blessed.identity.checkpoint_sha256
    return f"★ blessed {when}: an earlier run, {'same' if same else 'other'} weights"


def _needs(newest: RunRecord, judged: RunRecord | None, review: Review, now: datetime) -> list[str]:
    needs: list[str] = []
    if newest.state is RunState.INTERRUPTED:
        needs.append(f"The newest run was interrupted: q36eval gate --branch {newest.branch} --resume {newest.id}")
    elif newest.state is RunState.RUNNING:
        needs.append(f"A run has been going on since {age_text(newest.started, now)}; nothing to do if it is alive.")
    if judged is None or judged.report is None:
        return needs or [f"Never judged: q36eval gate --branch {newest.branch}"]
    needs += _report_needs(judged.report)
    if judged.verdict is Verdict.PASS and review.blessing is None:
        needs.append(f"Passed and not blessed: q36eval history bless {judged.id} --owner NAME --reason WHY")
    if now - judged.started > STALE_AFTER:
        needs.append(f"The verdict is older than {STALE_AFTER.days} days: judge it again.")
    worse = [metric.key for metric in review.drift if moved_for_the_worse(metric)]
    if worse and review.blessing is not None:
        needs.append(f"Moved for the worse since the blessed run: {_names(worse)}")
    needs += _waiver_needs(review.waivers, now)
    return needs


def _report_needs(report: GateReport) -> list[str]:
    needs = []
    missing = [r.id for r in report.criteria if r.verdict is CriterionVerdict.NOT_MEASURED]
    open_ = [name for name in report.decisive if name not in missing]
    if report.verdict is Verdict.FAIL:
        needs.append(f"Failed: {_names(open_)}")
    elif open_:
        needs.append(f"Not decided: {_names(open_)}")
    if missing:
        needs.append(f"Not measured: {_names(missing)}")
    return needs


def _waiver_needs(waivers: Sequence[Waiver], now: datetime) -> list[str]:
    today = now.astimezone(UTC).date()
    needs = []
    for waiver in sorted(waivers, key=lambda waiver: (waiver.expires, waiver.scope)):
        if waiver.expires < today:
            needs.append(f"The waiver of {waiver.scope} by {waiver.owner} expired on {waiver.expires}.")
        elif waiver.expires - today <= EXPIRES_SOON:
            needs.append(f"The waiver of {waiver.scope} by {waiver.owner} expires on {waiver.expires}.")
    return needs


def moved_for_the_worse(metric: MetricDrift) -> bool:
    """Whether the metric's level left the accepted one, the bad way."""
    return metric.state is DriftState.DRIFTING and metric.worse


def _names(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
