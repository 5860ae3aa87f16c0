"""Texts that a baseline keeps belong to it alone: a new one forgets them, and nothing is kept after a calibration."""

import json
from collections.abc import Callable

import pytest

from q36eval.watch.incidents import Incident, Phase, State
from q36eval.watch.service import Setting, Watch
from q36eval.watch.webhooks import Receiver
from tests.q36eval.watch.conftest import QUICK, Clock, Place

pytestmark = pytest.mark.long

Made = Callable[..., Setting]


def kept(watch: Watch) -> list[int]:
    return [place for place in range(100) if watch.store.kept(f"anchor/text-{place}") is not None]


def test_a_text_that_the_calibration_did_not_come_to_is_never_kept_later(
    place: Place, clock: Clock, setting: Made
) -> None:
    short = QUICK.model_copy(update={"calibration_rounds": 2, "anchors": 24})
    with Watch(setting(place.deployment(alarm=short)), lambda _: None, clock) as watch:
        watch.round(), watch.round()
        assert watch.state.phase is Phase.QUIET
        known = kept(watch)
        assert len(known) == 6  # three texts a round
        further = watch.round()
        assert {item.name for item in further.items if item.slice == "kl"} == {"text-0", "text-2", "text-4"}
        assert kept(watch) == known


def test_a_new_baseline_forgets_every_text_and_says_what_becomes_of_an_incident(
    place: Place, clock: Clock, setting: Made
) -> None:
    deployment, heard = place.deployment(), Receiver("http://127.0.0.1:9/hook", "json")
    with Watch(setting(deployment), lambda _: None, clock) as watch:
        watch.round(), watch.round()
        watch.store.forget("anchor/text-0")  # a gap, as an answer that errored leaves one
        at = clock.now()
        incident = Incident(id="i", opened=at, streams=("kl",), prompts=(), seen=(), confirmed=at)
        confirmed = State(phase=Phase.CONFIRMED, incident=incident, events=3)
        watch.store.keep("state", confirmed.model_dump_json())
    with Watch(setting(deployment, receivers=(heard,)), lambda _: None, clock, recalibrate=True) as watch:
        assert kept(watch) == []
        (posted,) = watch.store.due(2e10)
        said = json.loads(posted.body)
        assert (said["event"], said["incident"]) == ("incident.closed", "i")
        assert "new baseline" in said["reason"]
        assert watch.store.counts()["incidents", "closed"] == 1
        assert watch.round().put_off is None
