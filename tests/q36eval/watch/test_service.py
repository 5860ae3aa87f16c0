"""Rounds against a real model over HTTP: quiet, damaged, mended, throttled, away; each kept in history once."""

import json
import re
from pathlib import Path

import httpx
import pytest

from q36eval.engines import Engine
from q36eval.errors import ExitCode, UsageError
from q36eval.gate import Policy
from q36eval.history import History, RunState
from q36eval.history.decisions import circumstances_then, decided, evidence_of
from q36eval.watch.incidents import EventKind, Incident, Phase, State
from q36eval.watch.pages import Pages
from q36eval.watch.service import Outcome, Watch
from q36eval.watch.webhooks import Receiver
from tests.branches import folder_of
from tests.q36eval.openai.server import opened
from tests.q36eval.watch.conftest import FEW, QUICK, Clock, Place
from tests.raising import raises

pytestmark = pytest.mark.long


def rounds(watch: Watch, clock: Clock, count: int) -> list[Outcome]:
    outcomes = []
    for _ in range(count):
        outcomes.append(watch.once())
        clock.later(minutes=15)
    return outcomes


def test_a_damaged_model_is_alarmed_confirmed_and_closed_once_it_is_mended(
    place: Place, tmp_path: Path, local: Engine
) -> None:
    log: list[str] = []
    longer = QUICK.model_copy(update={"calibration_rounds": 6})  # it shows much, whichever variants are drawn
    many_texts = place.deployment(amounts=FEW.model_copy(update={"kl": 12}), alarm=longer)
    with place.watch(many_texts, log.append) as watch:
        calibrating = rounds(watch, place.clock, 6)
        assert {outcome.result for outcome in calibrating} == {"inconclusive"}
        assert watch.state.phase is Phase.QUIET
        (quiet,) = rounds(watch, place.clock, 1)
        assert (quiet.result, quiet.exit_code) == ("pass", ExitCode.PASS)
        place.exchange(opened(folder_of("int2-experts")))
        damaged = rounds(watch, place.clock, 6)  # those that confirm are an interval apart
    kinds = [event.kind for outcome in damaged for event in outcome.events]
    assert kinds == [EventKind.OPENED, EventKind.CONFIRMED]
    assert damaged[-1].exit_code is ExitCode.FAIL
    place.exchange(local)
    with place.watch(many_texts, log.append) as watch:  # the incident survives a restart
        assert watch.state.phase is Phase.CONFIRMED
        mended = rounds(watch, place.clock, 3)
        spent = watch.store.spent("2026-11-20")
        assert watch.store.spooled() == 0
    assert [event.kind for outcome in mended for event in outcome.events] == [EventKind.CLOSED]
    assert mended[-1].result == "pass"
    # what the server counted is no more than what was charged before it was sent
    assert place.seen["requests"] == spent.requests
    assert 0 < place.seen["tokens"] <= spent.tokens
    history = History.open(tmp_path / "history.sqlite")
    runs = history.list_runs(family="sandbox", branch="watch:prod")
    assert all(run.state is RunState.FINISHED for run in runs)
    assert sum(run.verdict == "FAIL" for run in runs) >= 1
    for run in runs:  # and each verdict can be decided again from history
        whole = history.get_run(run.id)
        then = circumstances_then(history, whole)
        again = decided(Policy.model_validate(whole.policy), evidence_of(history, whole, then), then)
        assert again == whole.report


def test_what_the_server_wants_ends_a_round_that_then_counts_for_nothing(place: Place) -> None:
    log: list[str] = []
    with place.watch(log=log.append) as watch:
        assert watch.once().result == "inconclusive"
        before = watch.state
        place.refusing |= {"status": 429, "retry_after": 120}
        sent = place.seen["requests"]
        throttled = watch.once()
        assert (throttled.put_off, throttled.exit_code) == ("throttled", ExitCode.NOT_MEASURED)
        assert place.seen["requests"] == sent + 1  # nothing is repeated to a server that is overloaded
        place.refusing.clear()
        place.clock.later(seconds=119)
        assert watch.once().put_off == "throttled"
        assert place.seen["requests"] == sent + 1
        assert watch.state == before
        place.clock.later(seconds=2)
        assert watch.once().put_off is None
        counts = watch.store.counts()
    assert counts["put_off", "throttled"] == 2
    assert counts["rounds", "put_off"] == 2


def test_an_endpoint_that_is_away_is_not_measured_and_the_next_round_goes_on(place: Place, tmp_path: Path) -> None:
    with place.watch() as watch:
        place.refusing |= {"status": 500}
        away = watch.once()
        assert (away.result, away.exit_code) == ("not_measured", ExitCode.NOT_MEASURED)
        assert watch.state.rounds == 0
        place.refusing.clear()
        assert watch.once().result == "inconclusive"
        assert watch.state.rounds == 1
    history = History.open(tmp_path / "history.sqlite")
    reports = [history.get_run(run.id).report for run in history.list_runs()]
    assert sorted(report.exit_code for report in reports if report is not None) == [3, 4]


def test_a_round_stays_within_its_budget_and_a_spent_day_puts_off(place: Place) -> None:
    tight = place.deployment(
        budget={"requests_per_day": 60, "tokens_per_day": 9_000, "requests_per_round": 25, "tokens_per_round": 3_000}
    )
    with place.watch(tight) as watch:
        results = [outcome.put_off for outcome in rounds(watch, place.clock, 8)]
        spent = watch.store.spent("2026-11-20")
        assert results[-1] == "budget"
        assert (place.seen["requests"], spent.requests <= 60, spent.tokens <= 9_000) == (spent.requests, True, True)
        place.clock.later(days=1)
        assert watch.once().put_off is None


def test_a_full_disk_asks_nothing_and_the_watch_recovers(place: Place) -> None:
    with place.watch() as watch:
        assert watch.once().put_off is None
        sqlite = watch.store._sqlite
        sqlite.execute("VACUUM")
        pages = sqlite.execute("PRAGMA page_count").fetchone()[0]
        sqlite.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own limit fails as a full disk does
        sent = place.seen["requests"]
        full = [watch.once() for _ in range(2)]
        assert {outcome.put_off for outcome in full} == {"disk"}
        assert place.seen["requests"] == sent
        sqlite.execute("PRAGMA max_page_count = 1000000")
        assert watch.once().put_off is None
        assert watch.state.rounds == 2


def test_a_history_that_is_away_gets_every_round_once_when_it_is_back(place: Place, tmp_path: Path) -> None:
    away = {"now": True}

    def history() -> History:
        if away["now"]:  # nobody listens there
            return History.open("postgresql://nobody@127.0.0.1:9/none?connect_timeout=2")
        return History.open(tmp_path / "history.sqlite")

    deployment = place.deployment(spool_rounds=3)
    with place.watch(deployment, open_history=history) as watch:
        outcomes = rounds(watch, place.clock, 4)
        assert [outcome.put_off for outcome in outcomes] == [None, None, None, "spool"]
        assert not watch.spool.reachable
        away["now"] = False
        watch.spool.deliver()
        assert (watch.store.spooled(), watch.spool.reachable) == (0, True)
        later = watch.once()
    kept = {run.id for run in History.open(tmp_path / "history.sqlite").list_runs()}
    assert kept == {outcome.run for outcome in [*outcomes[:3], later]}


def test_a_baseline_of_other_prompts_is_refused_until_a_new_one_is_wanted(place: Place) -> None:
    with place.watch() as watch:
        watch.once()
        with raises(UsageError, "already-running", "prod"), place.watch():
            pass
    other = place.deployment(canaries=("json-flat", "json-flat-must-pass"))
    with raises(UsageError, "baseline-mismatch", "prod"), place.watch(other):
        pass
    with place.watch(other, recalibrate=True) as watch:
        assert watch.state.rounds == 0


# -- texts that a baseline keeps belong to it alone


def kept(watch: Watch) -> list[int]:
    return [place for place in range(100) if watch.store.kept(f"anchor/text-{place}") is not None]


def test_a_text_that_the_calibration_did_not_come_to_is_never_kept_later(place: Place) -> None:
    short = QUICK.model_copy(update={"calibration_rounds": 2, "anchors": 24})
    with place.watch(place.deployment(alarm=short)) as watch:
        watch.round(), watch.round()
        assert watch.state.phase is Phase.QUIET
        known = kept(watch)
        assert len(known) == 6  # three texts a round
        further = watch.round()
        assert {item.name for item in further.items if item.slice == "kl"} == {"text-0", "text-2", "text-4"}
        assert kept(watch) == known


def test_a_new_baseline_forgets_every_text_and_says_what_becomes_of_an_incident(place: Place) -> None:
    deployment, heard = place.deployment(), Receiver("http://127.0.0.1:9/hook", "json")
    with place.watch(deployment) as watch:
        watch.round(), watch.round()
        watch.store.forget("anchor/text-0")  # a gap, as an answer that errored leaves one
        at = place.clock.now()
        incident = Incident(id="i", opened=at, streams=("kl",), prompts=(), seen=(), confirmed=at)
        confirmed = State(phase=Phase.CONFIRMED, incident=incident, events=3)
        watch.store.keep("state", confirmed.model_dump_json())
    with place.watch(deployment, receivers=(heard,), recalibrate=True) as watch:
        assert kept(watch) == []
        (posted,) = watch.store.due(2e10)
        said = json.loads(posted.body)
        assert (said["event"], said["incident"]) == ("incident.closed", "i")
        assert "new baseline" in said["reason"]
        assert watch.store.counts()["incidents", "closed"] == 1
        assert watch.round().put_off is None


# -- the pages say what docs/watch.md promises, in a text that Prometheus' own reader takes

PAGE = Path(__file__).parents[3] / "docs" / "watch.md"


@pytest.mark.long
def test_every_series_is_documented_with_its_type_and_labels(place: Place) -> None:
    reason = "the extra watch is not installed"
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason=reason)
    with place.watch() as watch:
        pages = Pages(watch, "127.0.0.1", 0, "0.1")
        try:
            assert httpx.get(f"{pages.address}/readyz").status_code == 503  # nothing has answered yet
            for _ in range(4):
                watch.once()
                place.clock.later(minutes=15)
            assert httpx.get(f"{pages.address}/readyz").status_code == 200
            assert httpx.get(f"{pages.address}/healthz").text == "ok\n"
            openmetrics = {"Accept": "application/openmetrics-text; version=1.0.0"}
            text = httpx.get(f"{pages.address}/metrics", headers=openmetrics).text
            plain = httpx.get(
                f"{pages.address}/metrics",
            )
            watch.rounded -= 86_400
            assert httpx.get(f"{pages.address}/healthz").status_code == 503
        finally:
            pages.close()
    assert plain.headers["content-type"].startswith("text/plain; version=")
    shown: dict[str, tuple[str, set[str]]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["deployment"] == "prod"
            kind, labels = shown.setdefault(sample.name, (family.type, set()))
            labels |= sample.labels.keys() - {"deployment"}
    rows = re.findall(r"^\| `(q36eval_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(encoding="utf-8"), re.M)
    expected = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(expected) > 20
    assert set(shown) == set(expected)
    for name, (kind, words) in expected.items():
        assert shown[name][0] == kind, name
        assert shown[name][1] <= words, name
