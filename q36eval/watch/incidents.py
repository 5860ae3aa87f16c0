"""From rounds to incidents: calibrating, quiet, opened, confirmed, closed. Pure: a state, a round's items, a new state.

The first rounds are the baseline. Then every stream of items has a detector, and their mean opens an incident. From
then on only fresh items count: they confirm it, or show recovery, which closes or dismisses it. Rounds less than half
an interval apart (`--once`) query under the same condition: they may show recovery, but confirm nothing. Required
prompts are watched twice: all together, and each separately, so that a permanent failure of one is not hidden among
seventy others.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from q36eval.records import Record
from q36eval.watch.detector import (
    NOTHING,
    ONE,
    Logs,
    detected,
    log_mean,
    log_total,
    mixed_bets,
    quiet_share,
    recovery_bets,
    share_bets,
    tried,
)
from q36eval.watch.settings import YEAR_S, Alarm

REQUIRED, PROMPTS, FAMILIES, KL, DIFFERENTIALS = "required", "prompts", "families", "kl", "differentials"
SLICES = (REQUIRED, FAMILIES, KL, DIFFERENTIALS)
"""The parts of a round; `PROMPTS` are the required ones again, each separately."""
STREAMS = (REQUIRED, PROMPTS, FAMILIES, KL, DIFFERENTIALS)
WATCHABLE = 0.5
"""A stream whose calibration allows this loss rate is too insensitive."""
FEWEST = 10
"""The minimum of watched required prompts, besides half of all; all of them if fewer exist."""
NOTICEABLE = 0.05
"""A stream counts as alarmed if its share of the evidence is at least this."""


class Item(Record):
    """One item of a round: `lost` is None where it errored, or could not be read.

    A `suspect` is a required prompt that is repeated because it was lost; `fresh` items may confirm an incident: no
    alarm rests on them. `divergence` is a document's mean KL from its baseline, in nats a token.
    """

    slice: str
    name: str
    lost: bool | None
    suspect: bool = False
    fresh: bool = False
    divergence: float | None = None
    reason: str = ""


class Phase(StrEnum):
    """The state of the deployment."""

    CALIBRATING = "calibrating"
    QUIET = "quiet"
    OPENED = "opened"
    CONFIRMED = "confirmed"


class Incident(Record):
    """A detected change: its streams and prompts, and the evidence of fresh items since."""

    id: str
    opened: datetime
    streams: tuple[str, ...]
    prompts: tuple[str, ...]
    seen: tuple[str, ...]
    """Names of items that were lost when it was opened: they confirm nothing."""
    confirmed: datetime | None = None
    counted: datetime | None = None
    """The end of the newest round that could confirm it."""
    rounds: int = 0
    trials: dict[str, Logs] = Field(default_factory=dict)
    recoveries: dict[str, Logs] = Field(default_factory=dict)
    right: dict[str, int] = Field(default_factory=dict)
    """The number of consecutive right answers of each alarmed prompt since."""


class State(Record):
    """The knowledge about a deployment from its rounds so far. `quiet` is the quiet share of losses by stream."""

    phase: Phase = Phase.CALIBRATING
    rounds: int = 0
    """The number of measured rounds, including the calibration's."""
    counted: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """In the calibration, by slice: items, and those lost."""
    prompts: dict[str, bool] = Field(default_factory=dict)
    """Required prompts in the calibration: whether each was always right."""
    evaluated: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """By required prompt: how often it was evaluated, and lost."""
    own: dict[str, float] = Field(default_factory=dict)
    """Quiet shares of required prompts whose incident was dismissed: their allowed loss rate."""
    widest: float = 0.0
    """The greatest divergence of a document in the calibration, nats a token."""
    quiet: dict[str, float] = Field(default_factory=dict)
    detectors: dict[str, Logs] = Field(default_factory=dict)
    incident: Incident | None = None
    suspects: tuple[str, ...] = ()
    events: int = 0

    @property
    def watched(self) -> tuple[str, ...]:
        """The required prompts that the baseline answers right, less those that were too often wrong without damage."""
        return tuple(name for name, right in self.prompts.items() if right and self.own.get(name, 0.0) < WATCHABLE)


class EventKind(StrEnum):
    """What may happen to a deployment that is watched."""

    CALIBRATED = "calibrated"
    OPENED = "incident.opened"
    CONFIRMED = "incident.confirmed"
    CLOSED = "incident.closed"
    DISMISSED = "incident.dismissed"


class Event(Record):
    """A transition, with its reason for people and its figures. `number` counts them from 1."""

    number: int
    kind: EventKind
    at: datetime
    reason: str
    incident: str | None = None
    figures: dict[str, Any] = Field(default_factory=dict)


def tolerance(state: State, alarm: Alarm) -> float:
    """A document counts as lost above this many nats per token."""
    return max(alarm.kl_tolerance, 2.0 * state.widest)


def is_watched(state: State, item: Item) -> bool:
    """Whether its loss is evidence: a required prompt that the baseline answers wrong was already lost."""
    own = state.own.get(item.name, 0.0)
    return item.slice != REQUIRED or (state.prompts.get(item.name, False) and own < WATCHABLE)


def too_few_watched(state: State) -> str | None:
    """Why the required prompts cannot show a change, if the baseline answers too few of them right."""
    watched, known = len(state.watched), len(state.prompts)
    if known and (2 * watched < known or watched < min(FEWEST, known)):
        return f"only {watched} of {known} required prompts are watched; the others are wrong too often without damage"
    return None


def remaining_rounds(state: State, alarm: Alarm) -> int:
    """The remaining rounds of the calibration."""
    return max(0, alarm.calibration_rounds - state.rounds) if state.phase is Phase.CALIBRATING else 0


def evidence(state: State, threshold: float) -> dict[str, float]:
    """By stream, and of `all`: log of the evidence over the log of the alarm's threshold, from 0; 1 is the alarm."""
    logs, weights = state.detectors, _weights(state)
    shares = {
        stream: log_total({key: log for key, log in _log_wealth(logs).items() if _stream(key) == stream}, weights)
        for stream in STREAMS
    }
    shares["all"] = log_total(_log_wealth(logs), weights)
    return {name: max(0.0, value) / math.log(threshold) if value > -math.inf else 0.0 for name, value in shares.items()}


def advance(
    state: State, items: Sequence[Item], alarm: Alarm, threshold: float, at: datetime, *, all_seen: bool
) -> tuple[State, list[Event]]:
    """The state after one more measured round, and what happened.

    `threshold` is the mean number of rounds to a false opening; `all_seen` says whether every required prompt was
    evaluated at least once, before which no calibration ends.
    """
    suspects = tuple(
        dict.fromkeys(item.name for item in items if item.slice == REQUIRED and item.lost and is_watched(state, item))
    )
    evaluated = dict(state.evaluated)
    for item in items:
        if item.slice == REQUIRED and item.lost is not None:
            times, lost = evaluated.get(item.name, (0, 0))
            evaluated[item.name] = (times + 1, lost + item.lost)
    state = state.model_copy(update={"rounds": state.rounds + 1, "evaluated": evaluated})
    if state.phase is Phase.CALIBRATING:
        return _calibrated(state, items, alarm, at, all_seen=all_seen)
    state = state.model_copy(update={"suspects": suspects})
    if state.incident is None:
        return _watched(state, items, threshold, at)
    return _followed(state, state.incident, items, alarm, _apart(alarm, threshold), at)


def abandoned(state: State, at: datetime) -> tuple[State, list[Event]]:
    """The end of an incident whose baseline is discarded, for its receivers."""
    if state.incident is None:
        return state, []
    kind = EventKind.DISMISSED if state.incident.confirmed is None else EventKind.CLOSED
    words = "a new baseline was started; it was not measured whether the losses continue"
    return _happened(state.model_copy(update={"incident": None}), kind, at, words, state.incident.id, {})


def _calibrated(
    state: State, items: Sequence[Item], alarm: Alarm, at: datetime, *, all_seen: bool
) -> tuple[State, list[Event]]:
    counted, prompts, widest = dict(state.counted), dict(state.prompts), state.widest
    for item in items:
        if item.divergence is not None:
            widest = max(widest, item.divergence)
        if item.lost is None:
            continue
        known, lost = counted.get(item.slice, (0, 0))
        counted[item.slice] = (known + 1, lost + (item.lost and item.slice != KL))
        if item.slice == REQUIRED:
            prompts[item.name] = prompts.get(item.name, True) and not item.lost
    state = state.model_copy(update={"counted": counted, "prompts": prompts, "widest": widest})
    if state.rounds < alarm.calibration_rounds or not all_seen:
        return state, []
    # for prompts that were always right a share is not informative: their rate is the floor
    quiet = {REQUIRED: alarm.quiet_floor, PROMPTS: alarm.quiet_floor} if any(prompts.values()) else {}
    for name in (FAMILIES, KL, DIFFERENTIALS):
        known, lost = counted.get(name, (0, 0))
        if known and (share := quiet_share(lost, known, alarm.quiet_floor)) < WATCHABLE:
            quiet[name] = share
    detectors = {name: NOTHING for name in quiet if name != PROMPTS}
    wrong = [name for name, right in prompts.items() if not right]
    words = f"the baseline is complete after {state.rounds} rounds"
    words += f"; required prompts that it answers wrong are not watched: {', '.join(wrong)}" if wrong else ""
    figures = {"quiet": quiet, "tolerance_nats": tolerance(state, alarm), "prompts": len(prompts) - len(wrong)}
    update = {"phase": Phase.QUIET, "quiet": quiet, "detectors": detectors}
    return _happened(state.model_copy(update=update), EventKind.CALIBRATED, at, words, None, figures)


def _watched(state: State, items: Sequence[Item], threshold: float, at: datetime) -> tuple[State, list[Event]]:
    detectors = dict(state.detectors)
    for key, bets in _by_detector(state, items).items():
        detectors[key] = detected(detectors.get(key, NOTHING), mixed_bets(bets))
    state = state.model_copy(update={"detectors": detectors})
    logs, weights = _log_wealth(detectors), _weights(state)
    total = log_total(logs, weights)
    if total < math.log(threshold):
        return state, []
    parts = {key: math.exp(log + math.log(weights[key]) - total) for key, log in logs.items()}
    prompts = tuple(key.partition("/")[2] for key, part in parts.items() if "/" in key and part >= NOTICEABLE)
    streams = tuple(
        stream for stream in STREAMS if sum(part for key, part in parts.items() if _stream(key) == stream) >= NOTICEABLE
    )
    lost_items = [item for item in items if item.lost]
    incident = Incident(
        id=f"{at:%Y%m%d-%H%M%S}-{state.events + 1}",
        opened=at,
        streams=streams,
        prompts=prompts,
        seen=tuple(dict.fromkeys([*prompts, *(item.name for item in lost_items)])),
    )
    words = f"{_losses(items)}: more than is quiet, in {', '.join(streams)}"
    words += f" (required prompts: {', '.join(prompts)})" if prompts else ""
    figures = {"evidence": evidence(state, threshold), "lost": [item.name for item in lost_items][:20]}
    opened = state.model_copy(update={"phase": Phase.OPENED, "incident": incident})
    return _happened(opened, EventKind.OPENED, at, words, incident.id, figures)


def _followed(
    state: State, incident: Incident, items: Sequence[Item], alarm: Alarm, apart: timedelta, at: datetime
) -> tuple[State, list[Event]]:
    counts = at - (incident.counted or incident.opened) >= apart
    trials, recoveries, right = dict(incident.trials), dict(incident.recoveries), dict(incident.right)
    for name in SLICES:
        if name not in state.quiet:
            continue
        known = [
            item
            for item in items
            if item.slice == name and item.lost is not None and not item.suspect and is_watched(state, item)
        ]
        fresh = [item for item in known if item.fresh and item.name not in incident.seen]
        if fresh and counts:
            share_lost = sum(bool(item.lost) for item in fresh) / len(fresh)
            trials[name] = tried(trials.get(name, ONE), share_bets(share_lost, _mean_quiet(state, fresh)))
        if known:
            damaged = min(0.95, _mean_quiet(state, known) + alarm.recovery_margin)
            bets = recovery_bets([bool(item.lost) for item in known], damaged)
            recoveries[name] = detected(recoveries.get(name, NOTHING), bets)
    for item in items:
        if item.slice == REQUIRED and item.name in incident.prompts and item.lost is not None:
            right[item.name] = 0 if item.lost else right.get(item.name, 0) + 1
    update = {"trials": trials, "recoveries": recoveries, "right": right, "rounds": incident.rounds + 1}
    update |= {"counted": at} if counts and any(item.fresh and item.lost is not None for item in items) else {}
    incident = incident.model_copy(update=update)
    state = state.model_copy(update={"incident": incident})
    combined = log_mean(log_mean(trials.get(name, ONE)) for name in SLICES)
    figures: dict[str, Any] = {"fresh_evidence": combined / -math.log(alarm.false_confirmations)}
    if incident.confirmed is None and combined >= -math.log(alarm.false_confirmations):
        incident = incident.model_copy(update={"confirmed": at})
        state = state.model_copy(update={"phase": Phase.CONFIRMED, "incident": incident})
        words = f"{_losses(items)}; new items of later rounds are lost too, more than in calibration"
        return _happened(state, EventKind.CONFIRMED, at, words, incident.id, figures)
    if not _recovered(incident, alarm):
        return state, []
    was = incident.confirmed is not None
    words = f"for {incident.rounds} rounds since it opened, the newest with losses as rare as before"
    calm = {name: NOTHING for name in state.quiet if name != PROMPTS}
    own = {} if was else _own_quiet(state, incident, alarm)
    if own:
        figures["quiet"] = own
        words += (
            f"; from now on so often may be lost: {', '.join(f'{name} {share:.0%}' for name, share in own.items())}"
        )
    update = {"phase": Phase.QUIET, "incident": None, "detectors": calm, "own": state.own | own}
    state = state.model_copy(update=update)
    return _happened(state, EventKind.CLOSED if was else EventKind.DISMISSED, at, words, incident.id, figures)


def _recovered(incident: Incident, alarm: Alarm) -> bool:
    """Whether every alarmed stream and every prompt has recovered."""
    if incident.rounds < alarm.closing_rounds:
        return False
    slices = {REQUIRED if stream == PROMPTS else stream for stream in incident.streams}
    needed = math.log(alarm.rounds_between_false_closings)
    calm = all(log_mean(incident.recoveries.get(name, NOTHING)) >= needed for name in slices)
    return calm and all(incident.right.get(name, 0) >= alarm.closing_rounds for name in incident.prompts)


def _own_quiet(state: State, incident: Incident, alarm: Alarm) -> dict[str, float]:
    """For required prompts behind a dismissed incident: the upper bound of their loss rate so far.

    The assumed 2 % turned out to be wrong for them. They triggered just after a loss, so the bound errs upwards.
    """
    if not {REQUIRED, PROMPTS} & set(incident.streams):
        return {}
    own = {}
    for name in state.watched:
        times, lost = state.evaluated.get(name, (0, 0))
        if name in incident.prompts or (lost >= 2 and lost > alarm.quiet_floor * times):
            own[name] = max(quiet_share(lost, times, alarm.quiet_floor), state.own.get(name, 0.0))
    return own


def _apart(alarm: Alarm, threshold: float) -> timedelta:
    """The minimum distance of rounds that may confirm: half an interval, as their ends vary.

    `threshold` counts the intervals in `years_between_false_openings`.
    """
    return timedelta(seconds=0.5 * alarm.years_between_false_openings * YEAR_S / threshold)


def _quiet_of(state: State, item: Item) -> float:
    return state.own.get(item.name, state.quiet[REQUIRED]) if item.slice == REQUIRED else state.quiet[item.slice]


def _mean_quiet(state: State, items: Sequence[Item]) -> float:
    return sum(_quiet_of(state, item) for item in items) / len(items)


def _by_detector(state: State, items: Sequence[Item]) -> dict[str, list[tuple[bool, float]]]:
    """The items for each detector, each with its quiet share. A suspect counts only separately."""
    bets: dict[str, list[tuple[bool, float]]] = {}
    for item in items:
        if item.lost is None or item.slice not in state.quiet or not is_watched(state, item):
            continue
        bet = (item.lost, _quiet_of(state, item))
        if item.slice == REQUIRED:
            bets.setdefault(f"{PROMPTS}/{item.name}", []).append(bet)
        if not item.suspect:
            bets.setdefault(item.slice, []).append(bet)
    return bets


def _stream(key: str) -> str:
    return key.partition("/")[0]


def _weights(state: State) -> dict[str, float]:
    """Equal among the streams, and among the prompts that share one; the sum is at most 1."""
    each, prompts = 1.0 / len(STREAMS), max(1, len(state.watched))
    return {key: each / prompts if "/" in key else each for key in state.detectors}


def _log_wealth(detectors: dict[str, Logs]) -> dict[str, float]:
    return {key: log_mean(logs) for key, logs in detectors.items()}


def _losses(items: Sequence[Item]) -> str:
    """The number of losses per slice, in words."""
    parts = []
    for name in SLICES:
        known = [item for item in items if item.slice == name and item.lost is not None]
        if known:
            parts.append(f"{sum(bool(item.lost) for item in known)} of {len(known)} {name}")
    return f"lost {', '.join(parts)}" if parts else "nothing was measured"


def _happened(
    state: State, kind: EventKind, at: datetime, reason: str, incident: str | None, figures: dict[str, Any]
) -> tuple[State, list[Event]]:
    state = state.model_copy(update={"events": state.events + 1})
    return state, [Event(number=state.events, kind=kind, at=at, reason=reason, incident=incident, figures=figures)]
