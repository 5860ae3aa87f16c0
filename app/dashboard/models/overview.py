"""What the overview says of each branch and of what is being measured now, and what needs a person. Pure."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum

from q36eval.drift import BranchDrift, DriftState
from q36eval.gate.report import CriterionVerdict, GateReport, Waiver
from q36eval.history import Blessing, BranchKey, BranchSummary, RunProgress, RunState, RunSummary, WaiverRecord
from q36eval.records import Lane, Verdict
from q36eval.reports.text import duration

STALE_AFTER = timedelta(days=30)
EXPIRES_SOON = timedelta(days=14)
MOST_NAMES = 6


class Urgency(IntEnum):
    """What a person should look at first; nothing to do comes last."""

    FAILED = 0
    NOT_DECIDED = 1
    DRIFTING = 2
    UNSIGNED = 3
    WAIVER = 4
    NOT_BLESSED = 5
    STALE = 6
    UNFINISHED = 7
    NOTHING = 9


@dataclass(frozen=True)
class Need:
    """One thing that waits for a person, in words, and the command or page that settles it."""

    urgency: Urgency
    words: str
    command: str | None = None


@dataclass(frozen=True)
class Review:
    """What people decided about a branch, where it stands over its runs, and the report of its newest verdict, the two
    where they were read.

    `reports` are those of other runs that say how it stands. `changed`: the newest run was left since its checkpoint
    changed, and cannot be resumed. `other_bytes`: what began after the newest verdict is of another checkpoint,
    tokenizer or chat template.
    """

    blessing: Blessing | None = None
    waivers: tuple[Waiver, ...] = ()
    drift: BranchDrift | None = None
    report: GateReport | None = None
    reports: Mapping[str, GateReport] = field(default_factory=dict)
    changed: bool = False
    other_bytes: bool = False


@dataclass(frozen=True)
class BranchRow:
    """One line of the overview; `shown` is the run that it speaks of: the newest judged, else the newest."""

    of: BranchSummary
    lanes: dict[Lane, Verdict | None]
    waived: frozenset[Lane]
    freshness: str
    blessing: str
    needs: tuple[Need, ...]

    @property
    def key(self) -> BranchKey:
        """Family and branch."""
        return self.of.family, self.of.branch

    @property
    def shown(self) -> RunSummary:
        """The newest run with a verdict, else the newest of all."""
        return self.of.judged or self.of.newest

    @property
    def verdict(self) -> Verdict | None:
        """The latest overall verdict."""
        return None if self.of.judged is None else self.of.judged.verdict

    @property
    def urgency(self) -> Urgency:
        """Of what needs a person most."""
        return min((need.urgency for need in self.needs), default=Urgency.NOTHING)


def branch_row(of: BranchSummary, review: Review, now: datetime) -> BranchRow:
    """A branch as it stands at that moment (UTC)."""
    judged = of.judged
    lanes = {} if judged is None else judged.lanes
    waived = () if review.report is None else (lane.lane for lane in review.report.lanes if lane.waived)
    return BranchRow(
        of=of,
        lanes={lane: lanes.get(lane) for lane in Lane},
        waived=frozenset(waived),
        freshness="never judged" if judged is None else _freshness(judged, now),
        blessing=_blessing(review.blessing, judged),
        needs=tuple(sorted(_needs(of, review, now), key=lambda need: need.urgency)),
    )


def drift_need(drift: BranchDrift) -> Need | None:
    """What the drift of a branch asks of a person."""
    if drift.state is not DriftState.DRIFTING or not drift.worse:
        return None
    return Need(Urgency.DRIFTING, f"Drifting for the worse: {drift.statement}")


def age_text(since: datetime, now: datetime) -> str:
    """How long ago, in the unit a person would say."""
    seconds = max(0, int((now - since).total_seconds()))
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            n = seconds // size
            return f"{n} {unit}{'s' if n > 1 else ''} ago"
    return "just now"


def standing_waivers(records: Iterable[WaiverRecord]) -> dict[BranchKey, tuple[Waiver, ...]]:
    """Waivers by branch that stand, the expired ones among them."""
    by_branch: dict[BranchKey, tuple[Waiver, ...]] = {}
    for record in records:
        if record.revoked is None:
            key = (record.family, record.branch)
            by_branch[key] = (*by_branch.get(key, ()), record.waiver)
    return by_branch


def _freshness(judged: RunSummary, now: datetime) -> str:
    stale = now - judged.started > STALE_AFTER
    return f"judged {age_text(judged.started, now)}{' (stale)' if stale else ''}"


def _blessing(blessing: Blessing | None, judged: RunSummary | None) -> str:
    if blessing is None:
        return "not blessed"
    when = f"★ blessed by {blessing.owner} on {blessing.at.astimezone(UTC):%Y-%m-%d}"
    return f"{when}: this run" if judged is not None and blessing.run_id == judged.id else f"{when}: an earlier run"


def _needs(of: BranchSummary, review: Review, now: datetime) -> Iterable[Need]:
    newest, judged = of.newest, of.judged
    if review.changed:
        command = f"q36eval gate --branch {shlex.quote(of.branch)}"
        yield Need(Urgency.UNFINISHED, "The checkpoint changed while the newest run judged it; judge it anew:", command)
    elif newest.state is RunState.INTERRUPTED:
        command = f"q36eval gate --branch {shlex.quote(of.branch)} --resume {newest.id}"
        yield Need(Urgency.UNFINISHED, "The newest run was interrupted; it goes on where it stopped with:", command)
    if judged is None:
        if newest.state is RunState.FINISHED:
            yield Need(
                Urgency.UNFINISHED, "Measured but never judged:", f"q36eval gate --branch {shlex.quote(of.branch)}"
            )
        return
    yield from _verdict_needs(judged, review.report)
    moved = None if review.drift is None else drift_need(review.drift)
    if moved is not None:
        yield moved
    if judged.verdict is Verdict.PASS and review.blessing is None:
        yield Need(Urgency.NOT_BLESSED, "Passed and not blessed: nothing says what drift is measured against.")
    if now - judged.started > STALE_AFTER:
        yield Need(Urgency.STALE, f"The verdict is older than {STALE_AFTER.days} days: judge it again.")
    yield from _waiver_needs(review.waivers, now.astimezone(UTC).date())


def _verdict_needs(judged: RunSummary, report: GateReport | None) -> Iterable[Need]:
    """What the verdict leaves open; without its report, whose criteria it names, only that it does."""
    missing = [] if report is None else _headings(report, CriterionVerdict.NOT_MEASURED)
    by_id = {} if report is None else {result.id: result for result in report.criteria}
    decisive = [by_id[name] for name in report.decisive if name in by_id] if report is not None else []
    open_ = [one.heading for one in decisive if one.verdict is not CriterionVerdict.NOT_MEASURED]
    if judged.verdict is Verdict.FAIL:
        yield Need(Urgency.FAILED, f"Failed: {names(open_)}" if open_ else "Failed.")
    elif judged.awaiting_sign_off:
        yield Need(Urgency.UNSIGNED, "Passes but for a signature: read it and sign.")
    elif report is not None and report.nothing_found:
        yield Need(Urgency.NOT_DECIDED, "A pre-check found nothing: gate it over the suite that releases.")
    elif judged.verdict is Verdict.INCONCLUSIVE and (open_ or not missing):
        yield Need(Urgency.NOT_DECIDED, f"Not decided: {names(open_)}" if open_ else "Not decided.")
    # what a FAIL left out was mostly not asked any more: nothing it could find would change the verdict
    if missing and judged.verdict is not Verdict.FAIL:
        yield Need(Urgency.NOT_DECIDED, f"Not measured: {names(missing)}")


def _headings(report: GateReport, verdict: CriterionVerdict) -> list[str]:
    return [result.heading for result in report.criteria if result.verdict is verdict]


def _waiver_needs(waivers: Sequence[Waiver], today: date) -> Iterable[Need]:
    for waiver in sorted(waivers, key=lambda waiver: (waiver.expires, waiver.scope)):
        subject = f"The waiver of {waiver.scope} by {waiver.owner}"
        if waiver.expires < today:
            yield Need(Urgency.WAIVER, f"{subject} expired on {waiver.expires}.")
        elif waiver.expires - today <= EXPIRES_SOON:
            yield Need(Urgency.WAIVER, f"{subject} expires on {waiver.expires}.")


def names(of: Sequence[str], limit: int = MOST_NAMES) -> str:
    """A list in words, cut at a readable length."""
    shown = ", ".join(of[:limit])
    return shown if len(of) <= limit else f"{shown} and {len(of) - limit} more"


SILENT_AFTER = timedelta(minutes=10)
"""Of a run on another machine: a gate says how far it is every second while it asks, but loading may take minutes."""


@dataclass(frozen=True)
class LiveRun:
    """A run in state `running`; `share` is what is done of its stage, None where it never said; `silent` a dead one."""

    id: str
    family: str
    branch: str
    share: float | None
    words: str
    silent: bool


def live_runs(
    running: Iterable[tuple[RunSummary, RunProgress | None]],
    now: datetime,
    alive: Callable[[str], bool | None] = lambda run_id: None,
    seen: Mapping[str, RunProgress] = {},
) -> list[LiveRun]:
    """Each of them with how far it is; those that are silent come last.

    `alive` says whether a run's process lives, None where this machine cannot tell: then silence decides. `seen` is how
    far it was when the page was opened: its pace since then is the best guess of what remains.
    """
    live = [_live(run, progress, now, alive(run.id), seen.get(run.id)) for run, progress in running]
    return sorted(live, key=lambda live: (live.silent, live.family, live.branch, live.id))


def resume_command(branch: str, run_id: str) -> str:
    """What continues an interrupted run."""
    return f"q36eval gate --branch {shlex.quote(branch)} --resume {run_id}"


PACE_OVER = timedelta(seconds=10)
"""A pace seen for less says little: then that since the run began is taken, in which it was also set up."""


def remaining_seconds(run: RunSummary, progress: RunProgress, seen: RunProgress | None) -> float | None:
    """What is left of a stage at its pace in items; None where nothing of it is done, or all."""
    done, since = progress.done, run.started
    if seen is not None and seen.stage == progress.stage and progress.at - seen.at >= PACE_OVER:
        done, since = progress.done - seen.done, seen.at
    if done <= 0 or progress.done >= progress.total:
        return None
    return (progress.total - progress.done) * (progress.at - since).total_seconds() / done


def _live(
    run: RunSummary, progress: RunProgress | None, now: datetime, alive: bool | None, seen: RunProgress | None
) -> LiveRun:
    last = run.started if progress is None else progress.at
    silent = now - last > SILENT_AFTER if alive is None else not alive
    begun = f"begun {age_text(run.started, now)}"
    if progress is None:
        words = f"{begun}, has not said how far it is"
    else:
        of = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
        left = None if silent else remaining_seconds(run, progress, seen)
        time = None if left is None else duration(left)
        about = "" if time is None else f"{time} left · " if time.startswith("under") else f"about {time} left · "
        words = f"{about}{progress.stage}{of} · {begun}"
    if silent:
        what = "its process has ended; its last word was" if alive is False else "no sign of life since"
        words += f" · {what} {age_text(last, now)}"
    share = None if progress is None or not progress.total else min(1.0, progress.done / progress.total)
    return LiveRun(run.id, run.family, run.branch, share, words, silent)
