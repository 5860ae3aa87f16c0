"""Incidents open on what was lost, are confirmed by other items, and close by evidence; each survives a restart."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from q36eval.watch.incidents import Event, EventKind, Item, Phase, State, advance, evidence
from q36eval.watch.settings import Alarm
from q36eval.watch.verdicts import figures

ALARM = Alarm(calibration_rounds=24, closing_rounds=3)
THRESHOLD = 35_000.0
START = datetime(2026, 11, 20, tzinfo=UTC)
PROMPTS = [f"required/{n}" for n in range(24)]


def items_of(number: int, lost: Sequence[str] = (), slices: Sequence[str] = (), fresh: bool = False) -> list[Item]:
    """A round: six required prompts by turns, eight variants, six texts; of `slices` everything is lost."""
    turn = [PROMPTS[(number * 6 + n) % len(PROMPTS)] for n in range(6)]
    names = [("required", name) for name in turn]
    names += [("families", f"variant/{number}-{n}") for n in range(8)]
    half = "b" if fresh else "a"
    names += [("kl", f"text-{half}{n}") for n in range(6)]
    return [
        Item(slice=part, name=name, lost=part in slices or name in lost, fresh=fresh, divergence=None)
        for part, name in names
    ]


def after(state: State, items: Sequence[Item], number: int) -> tuple[State, list[Event]]:
    """One more round, and the state as it is read from disk again."""
    at = START + timedelta(minutes=15 * number)
    state, events = advance(state, items, ALARM, THRESHOLD, at, all_seen=True)
    return State.model_validate_json(state.model_dump_json()), events


def rounds(state: State, numbers: range, **what: Any) -> tuple[State, list[EventKind]]:
    """More rounds of such items, and their events."""
    kinds = list[EventKind]()
    for number in numbers:
        state, events = after(state, items_of(number, **what), number)
        kinds += [event.kind for event in events]
    return state, kinds


@pytest.fixture
def quiet() -> State:
    state, kinds = rounds(State(), range(24))
    assert kinds == [EventKind.CALIBRATED]
    return state


def test_a_damage_opens_is_confirmed_by_fresh_items_alone_and_closes_once_it_is_gone(quiet: State) -> None:
    state, kinds = rounds(quiet, range(12, 13), slices=["kl"])
    assert kinds == [EventKind.OPENED]
    assert state.incident.streams == ("kl",)
    # what was lost when it opened, and what is not fresh, confirms nothing however often it is lost
    state, kinds = rounds(state, range(13, 16), slices=["kl"])
    assert kinds == []
    state, kinds = rounds(state, range(16, 19), slices=["kl"], fresh=True)
    assert kinds == [EventKind.CONFIRMED]
    state, kinds = rounds(state, range(19, 32), fresh=True)
    assert (kinds, state.phase) == ([EventKind.CLOSED], Phase.QUIET)
    assert evidence(state, THRESHOLD)["all"] < 0.5


def test_one_required_prompt_that_breaks_for_good_opens_and_stays_open_until_it_is_right(quiet: State) -> None:
    broken = PROMPTS[3]
    state, opened_at = quiet, None
    for number in range(12, 60):
        known = items_of(number, lost=[broken], fresh=state.incident is not None)
        repeated = [Item(slice="required", name=broken, lost=True, suspect=True)] if broken in state.suspects else []
        others = [item for item in known if not repeated or item.name != broken]
        state, events = after(state, [*repeated, *others], number)
        opened_at = opened_at or next((number for event in events if event.kind is EventKind.OPENED), None)
        assert not any(event.kind is EventKind.CONFIRMED for event in events)
    assert opened_at - 12 <= 8  # it is lost for the first time within four rounds, and repeated in each after that
    assert state.phase is Phase.OPENED
    assert state.incident.prompts == (broken,)
    for number in range(60, 70):
        items = [*items_of(number, fresh=True), Item(slice="required", name=broken, lost=False, suspect=True)]
        state, events = after(state, items, number)
        if events:
            break
    assert [event.kind for event in events] == [EventKind.DISMISSED]


def test_what_errored_is_neither_lost_nor_kept(quiet: State) -> None:
    silent = [item.model_copy(update={"lost": None}) for item in items_of(12)]
    state, events = after(quiet, silent, 12)
    assert (state.detectors, events) == (quiet.detectors, [])


def test_what_the_baseline_cannot_do_is_not_watched_confirms_nothing_and_hinders_no_recovery() -> None:
    state, _ = rounds(State(), range(24), lost=PROMPTS[:1], slices=["families"])
    assert "families" not in state.quiet
    assert PROMPTS[0] not in state.watched
    assert rounds(state, range(12, 40), lost=PROMPTS[:1], slices=["families"])[1] == []
    wrong = PROMPTS[:12]
    state, _ = rounds(State(), range(24), lost=wrong)
    state, kinds = rounds(state, range(24, 25), lost=wrong, slices=["families"])
    assert kinds == [EventKind.OPENED]
    assert rounds(state, range(25, 45), lost=wrong, fresh=True)[1] == [EventKind.DISMISSED]


@pytest.mark.parametrize(("wrong", "counted"), [(0, 6), (3, 3), (13, None), (24, None)])
def test_required_prompts_count_as_measured_where_they_are_watched_and_enough_are(
    wrong: int, counted: int | None
) -> None:
    state, _ = rounds(State(), range(24), lost=PROMPTS[:wrong])
    items = items_of(24, lost=PROMPTS[:wrong])  # asks the first six
    measured, missing = figures(state, items, {}, None)
    scored = {one.slice: one.counts.scored for one in measured if one.metric == "watch_incidents"}
    assert scored.get("required") == counted
    assert any("required" in failure.reason for failure in missing) == (counted is None)
    assert scored["families"] == 8


def test_neither_rounds_that_follow_at_once_nor_one_more_bad_time_confirm_anything(quiet: State) -> None:
    state, _ = after(quiet, items_of(24, slices=["families", "kl"]), 24)
    for again in range(10):  # the same minutes, and so the same condition
        items = items_of(100 + again, slices=["families", "kl"], fresh=True)
        at = START + timedelta(minutes=15 * 24 + again / 2)
        state, events = advance(state, items, ALARM, THRESHOLD, at, all_seen=True)
        assert events == []
    assert rounds(state, range(25, 28), slices=["families", "kl"], fresh=True)[1] == [EventKind.CONFIRMED]
    # one more bad time, however many items it loses
    state, _ = rounds(quiet, range(24, 25), slices=["families"])
    kinds = list[EventKind]()
    for numbers, lost in ((range(25, 26), []), (range(26, 27), ["families"]), (range(27, 45), [])):
        state, more = rounds(state, numbers, slices=lost, fresh=True)
        kinds += more
    assert kinds == [EventKind.DISMISSED]


def test_a_prompt_that_flips_without_damage_opens_once_and_then_has_a_quiet_share_of_its_own(quiet: State) -> None:
    flipping, kinds, state = PROMPTS[0], list[EventKind](), quiet
    for number in range(24, 600):  # its turn comes every fourth round, and it is lost every fourth time
        state, events = after(state, items_of(number, lost=[flipping] if number % 16 == 0 else [], fresh=True), number)
        kinds += [event.kind for event in events]
    assert kinds == [EventKind.OPENED, EventKind.DISMISSED]
    assert list(state.own) == [flipping]
    times, lost = state.evaluated[flipping]
    assert lost / times < state.own[flipping]
