"""A round as a run of history: its figures, its verdict by the policy, its losses. Pure.

Its branch is `watch:DEPLOYMENT`, so that no round counts as a release of the served branch, and drift, listings and
blessings of the two stay separate.
"""

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from q36eval.gate import Circumstances, Policy, Stage, StageState, decide
from q36eval.history import WATCHED, About, EventKind, RunEvent, RunRecord, RunState, WholeRun
from q36eval.metrics import metric_of
from q36eval.records import Counts, ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.watch.incidents import (
    PROMPTS,
    REQUIRED,
    SLICES,
    Event,
    Item,
    Phase,
    State,
    is_watched,
    too_few_watched,
)


def begun(
    deployment: str, family: str, at: datetime, policy: Policy, suite: str, provenance: Mapping[str, Any]
) -> RunRecord:
    """The record of a round that begins; its id, in history's form, exists before any query."""
    return RunRecord(
        id=f"{at:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        family=family,
        branch=f"{WATCHED}{deployment}",
        identity=None,
        reference_identity=None,
        policy=policy.model_dump(mode="json"),
        suites={ProbeName.SERVED.value: suite},
        provenance=dict(provenance),
        state=RunState.RUNNING,
        started=at,
    )


def interrupted(run: RunRecord, at: datetime, why: str) -> WholeRun:
    """A round without an end: stored, and never resumed."""
    event = RunEvent(run_id=run.id, at=at, kind=EventKind.INTERRUPTED, message=why)
    run = run.model_copy(update={"state": RunState.INTERRUPTED, "finished": at})
    return WholeRun(run=run, measurements=(), items=(), about=About(events=(event,)))


def finished(
    run: RunRecord,
    policy: Policy,
    measurements: Sequence[Measurement],
    failures: Sequence[ProbeFailure],
    outcomes: Sequence[ItemOutcome],
    events: Sequence[str],
    at: datetime,
) -> WholeRun:
    """A finished round, decided: the same evidence gives the same verdict in every replay."""
    circumstances = Circumstances(on=at.date())
    items = max((one.counts.total for one in measurements), default=0)
    state = StageState.MEASURED if measurements else StageState.NOT_EVALUATED
    stages = (Stage(name=ProbeName.SERVED.value, state=state, items=items, planned=items),)
    report = decide(policy, measurements, (), failures, on=circumstances.on, stages=stages)
    told = [RunEvent(run_id=run.id, at=run.started, kind=EventKind.BEGUN, message="by q36eval watch")]
    told += [RunEvent(run_id=run.id, at=at, kind=EventKind.FINISHED, message=words) for words in events]
    told.append(RunEvent(run_id=run.id, at=at, kind=EventKind.FINISHED, message=report.headline))
    update = {
        "state": RunState.FINISHED,
        "finished": at,
        "verdict": report.verdict,
        "report": report,
        "circumstances": circumstances,
        "timings": {ProbeName.SERVED.value: (at - run.started).total_seconds()},
    }
    return WholeRun(
        run=run.model_copy(update=update),
        measurements=tuple(measurements),
        items=tuple(outcomes),
        about=About(failures=tuple(failures), events=tuple(told)),
    )


def figures(
    state: State, items: Sequence[Item], unmeasured: Mapping[str, str], calibrating: str | None
) -> tuple[list[Measurement], list[ProbeFailure]]:
    """The figures of a measured round, in the state after it, and the reasons for missing ones.

    `calibrating` marks a round that made the baseline: it is compared with nothing. In the others, items without a
    baseline do not count as measured.
    """
    if calibrating is None:
        items = [item for item in items if is_watched(state, item)]
    measured, missing = list[Measurement](), dict[str, list[str]]()
    incident = state.incident
    for name in SLICES:
        known = [item for item in items if item.slice == name]
        scored = [item for item in known if item.lost is not None]
        counts = Counts(total=len(known), scored=len(scored), errored=len(known) - len(scored))
        lost = sum(bool(item.lost) for item in scored)
        if known:
            measured.append(metric_of(ProbeName.SERVED, "watch_lost").counted(lost, counts, name, note=_named(scored)))
        why = unmeasured.get(name)
        if calibrating is not None:
            why = calibrating
        elif why is None and name not in state.quiet:
            why = "the calibration lost too many of these, or had none, so that no change shows"
        elif why is None and name == REQUIRED:
            why = too_few_watched(state)
        concerned = incident is not None and name in {REQUIRED if s == PROMPTS else s for s in incident.streams}
        if why is None and state.phase is Phase.OPENED and concerned:
            assert incident is not None, "one is open"
            why = f"incident {incident.id} is open since {incident.opened:%Y-%m-%d %H:%M} UTC and not confirmed"
        confirmed = state.phase is Phase.CONFIRMED and concerned
        if why is not None and not confirmed:
            missing.setdefault(why, []).append(name)
        elif known or confirmed:  # a confirmed incident stays, whatever this round shows
            measured.append(metric_of(ProbeName.SERVED, "watch_incidents").counted(int(confirmed), counts, name))
    reasons = (f"{', '.join(names)}: {why}" for why, names in missing.items())
    return measured, [ProbeFailure(probe=ProbeName.SERVED, reason=reason, kind="skipped") for reason in reasons]


def sentence(deployment: str, event: Event) -> str:
    """An event in a line, for people."""
    incident = "" if event.incident is None else f" {event.incident}"
    what = event.kind.value.replace("incident.", "incident ")
    return f"{deployment}: {what}{incident}: {event.reason}."


def _named(items: Sequence[Item]) -> str:
    """Some of the lost items, with their reasons."""
    return "; ".join(f"{item.name}: {item.reason}"[:160] for item in items if item.lost)[:800]
