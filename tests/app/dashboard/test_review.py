"""The review page writes what a named person decided, shows the gate change, and refuses everybody else.

A reviewer's way: from a red verdict to the flipped token, waive it, and see the gate change.
"""

import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from driving import Visit, answers_of, button, words_of
from written_history import write_run

from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.launch_options import Started, shown_source
from q36eval.app.dashboard.models.review import queue
from q36eval.app.dashboard.review_writer import bless, waive
from q36eval.app.dashboard.reviewer import permission_of
from q36eval.app.reviewing.redecision import decide_again
from q36eval.app.standing import Standings
from q36eval.errors import UsageError
from q36eval.gate import CriterionVerdict, Waiver
from q36eval.history import History, RunRecord
from q36eval.records import Verdict
from tests.app.judged_runs import judge_flips

Failing = tuple[Path, RunRecord, History]
shown = partial(words_of, kinds=("text", "markdown", "header", "success", "error"))


@pytest.fixture
def failing(history: History) -> Failing:
    """A history of one run that fails by its KL criteria alone; each test writes to its own."""
    return Path(history.name), write_run(history, "fp8-head", 1.5, 7, n_items=3), history


@pytest.mark.long
def test_an_early_stopped_fail_offers_no_waiver_form_and_says_what_it_takes(visit: Visit, history: History) -> None:
    path, run = Path(history.name), write_run(history, "int2-experts", 4.0, 4, stopped=True)
    app = visit(path, "review", run=run.id)
    assert "full record first" in app.warning[0].value
    assert [one.value for one in app.code][:1] == ["q36eval gate --branch int2-experts --exhaustive"]
    assert "Waive" not in [tab.label for tab in app.tabs]
    waived = Waiver(owner="Eva", reason="x", criterion=run.report.decisive[0], expires=datetime.now(UTC).date())
    history.add_waiver("sandbox", "int2-experts", waived)
    decide_again(history, run, family="sandbox", branch="int2-experts", policy=None, on=waived.expires)
    assert "full record first" in visit(path, "review", run=run.id).warning[0].value, "a waiver completes no record"


@pytest.mark.long
def test_a_waiver_that_would_change_nothing_has_no_button_and_is_not_written(visit: Visit, failing: Failing) -> None:
    path, run, history = failing
    passing = next(one for one in run.report.criteria if one.verdict is CriterionVerdict.PASS)
    app = visit(path, "review", run=run.id, waive="czech-discount")
    assert "has nothing to waive" in "".join(one.value for one in app.warning)
    assert passing.id not in app.selectbox(key="waive_name a criterion").options
    until = datetime.now(UTC).date() + timedelta(days=9)
    failed = run.report.decisive[0]
    history.add_waiver("sandbox", "fp8-head", Waiver(owner="Jana", reason="known", criterion=failed, expires=until))
    draft = Waiver(owner="Eva", reason="more", criterion=failed, expires=until - timedelta(days=1))
    reader, shown_run = Reader(path), history.get_run(run.id)
    with pytest.raises(UsageError, match="is waived already, until"):
        waive(reader, shown_run, draft, "Eva", "more")
    app = visit(path, "review", run=run.id)
    app = app.selectbox(key="waive_name a criterion").set_value(failed).run()
    app = app.date_input(key="waive_until").set_value(until - timedelta(days=1)).run()
    assert "is waived already" in shown(app)
    assert "Write the waiver and decide again" not in [one.label for one in app.button]
    assert len(history.waivers("sandbox", "fp8-head")) == 1


@pytest.mark.long
def test_signing_and_blessing_are_written_under_the_name(visit: Visit, failing: Failing) -> None:
    path, run, history = failing
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="sign_reason").set_value("read the flips")
    app.text_area(key="bless_reason").set_value("the level to hold")
    blesses = button(app, "Bless this run")
    app = button(app, "Sign and decide again").click().run()
    assert "Signed by Eva" in shown(app)
    app = blesses.click().run()  # drawn before the signature, which was this reviewer's own
    assert not [one.value for one in app.warning if "Somebody decided" in one.value]
    app.text_area(key="archive_reason").set_value("superseded")
    app = button(app, "Archive the branch").click().run()
    assert "List the branch again" in [one.label for one in app.button]
    assert history.archived()["sandbox", "fp8-head"].reason == "superseded"
    (blessing,), (signature,) = history.blessings("fp8-head", "sandbox"), history.sign_offs(run.id)
    assert (blessing.owner, signature.owner, signature.reason) == ("Eva", "Eva", "read the flips")
    assert history.get_run(run.id).verdict is Verdict.FAIL, "a signature turns no FAIL"


@pytest.mark.long
def test_a_report_of_another_version_is_decided_again_and_then_signed(visit: Visit, failing: Failing) -> None:
    path, run, history = failing
    other = run.report.model_copy(update={"notes": ("as an earlier version said it",)})
    history.decide_again(run.id, other, run.circumstances)
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app = button(app, "Decide again").click().run()
    assert "Sign and decide again" in [one.label for one in app.button]


@pytest.mark.long
def test_a_second_click_writes_nothing_more(visit: Visit, failing: Failing) -> None:
    """What the first click settled is no longer offered, and the click must not fall to what is offered instead."""
    path, run, history = failing
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="waive_reason").set_value("fixed in the next build")
    clicked = button(app, "Write the waiver and decide again")
    app = clicked.click().run()
    (first,) = history.waivers("sandbox", "fp8-head").values()
    assert app.text_area(key="waive_reason").value == "", "the next waiver has a reason of its own"
    clicked.click().run()
    app.text_area(key="waive_reason").set_value("another reason")
    clicked.click().run()
    assert list(history.waivers("sandbox", "fp8-head").values()) == [first]


@pytest.mark.long
def test_nothing_is_written_on_a_verdict_that_is_not_the_one_shown(visit: Visit, failing: Failing) -> None:
    """Somebody else waives and decides again before the click."""
    path, run, history = failing
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="sign_reason").set_value("I have read why it fails")
    app.text_area(key="bless_reason").set_value("the level to hold")
    today = datetime.now(UTC).date()
    known = Waiver(owner="Jana", reason="known", criterion=run.report.decisive[0], expires=today)
    history.add_waiver("sandbox", "fp8-head", known)
    as_before = {"family": run.family, "branch": run.branch, "policy": None, "require_sign_off": False}
    decide_again(history, run, on=today, **as_before)
    told = ""
    for clicked in [button(app, label) for label in ("Sign and decide again", "Bless this run")]:
        app = clicked.click().run()
        told += "\n".join(one.value for one in app.warning)
    assert "Somebody decided since" in told
    assert (history.sign_offs(run.id), history.blessings("fp8-head", "sandbox")) == ([], [])


@pytest.mark.long
@pytest.mark.parametrize("name", ["", " \u200b", "Jana\u202e", "\u2060", "--", "Eva\x00"])
def test_nobody_writes_under_a_name_that_others_cannot_read(
    failing: Failing, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run, _ = failing
    monkeypatch.setattr(sys, "argv", ["main.py", str(path), "--local"])
    with pytest.raises(UsageError, match="name"):
        bless(Reader(path), run, name, "because")


@pytest.mark.long
def test_read_only_hides_and_refuses_all_writing(
    visit: Visit, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run, _ = failing
    for flag, why in (("--read-only", "started with --read-only"), ("--network", "no login is configured")):
        app = visit(path, "review", flag, run=run.id)
        assert why in shown(app)
        assert not [button for button in app.button if button.key and button.key.startswith("write")]
        assert not app.text_area
        monkeypatch.setattr(sys, "argv", ["main.py", str(path), flag])
        with pytest.raises(UsageError, match=why):
            bless(Reader(path), run, "Eva", "because")


def test_who_may_write() -> None:
    here, shared = Started("history.sqlite", local=True), Started("history.sqlite")
    eva = {"is_logged_in": True, "email": "eva@example.org"}
    assert permission_of(here, {}, {}).may_write
    assert not permission_of(shared, {}, {}).may_write
    assert not permission_of(here, {"is_logged_in": False}, {}).may_write
    assert permission_of(shared, eva, {}).name == "eva@example.org"
    assert permission_of(shared, eva, {"reviewers": ["jana@example.org", "*@EXAMPLE.org"]}).may_write
    for others in ({"reviewers": ["jana@example.org"]}, {"reviewers": "*@x.org"}, {"reviewers": []}, {"reviewer": "*"}):
        assert not permission_of(shared, eva, others).may_write
    assert not permission_of(shared, eva | {"email_verified": False}, {}).may_write
    assert not permission_of(shared, {"is_logged_in": True, "name": "Eva"}, {}).may_write
    assert not permission_of(Started("x", read_only=True), eva, {}).may_write


def test_queue_has_what_waits_and_the_address_of_a_server_no_password(visit: Visit, written: Any) -> None:
    path, runs = written
    now = runs["pass"].started
    rows = Standings(Reader(path).history, now).all()
    assert [row.of.branch for row in queue(rows, now)] == ["int2-experts", "main"]
    app = visit(path, "review")
    assert "Failed: Required prompts (chat and prose)" in shown(app)
    assert shown_source("postgresql+psycopg://eva:secret@db.example.org:5432/q36?password=x") == (
        "postgresql://db.example.org/q36"
    )


# -- a reviewer's way


def follow(visit: Visit, path: Path, app: Any, label: str) -> Any:
    """The page that a link leads to."""
    (link,) = [one.proto for one in app.get("page_link") if one.proto.label.replace("\\", "") == label]
    return visit(path, link.page.rpartition("/")[2], **dict(parse_qsl(link.query_string)))


@pytest.mark.long
def test_from_a_red_verdict_to_the_flipped_token_to_a_pass(history: History, visit: Visit) -> None:
    path = Path(history.name)
    run = judge_flips(history, {"json": 0, "tools": 0, "shops": 1}, family="mine")

    app = visit(path)
    assert any("✗ BLOCKED" in one.value for one in app.markdown)
    app = follow(visit, path, app, "See why")
    assert any(one.value.startswith("1 of 60 questions") for one in app.caption)
    (shown,) = answers_of(app)
    assert shown["parting"] == "The answers part at token 8: the reference says ' A', the branch ' B'."
    assert [[text for text, mark in side["pieces"] if mark] for side in shown["sides"]] == [["A"], ["B"]]
    app = follow(visit, path, app, "Waive shops")
    assert "✗ FAIL" in app.title[0].value

    assert any("✓ PASS with waivers" in one.value for one in app.text), "what it would change is shown first"
    for key, typed, missing in (
        ("reviewer", "Jana", "Type your name first"),
        ("waive_reason", "a near tie; the shop names are alike", "needs a reason"),
    ):
        app = button(app, "Write the waiver and decide again").click().run()
        assert any(missing in one.value for one in app.text)
        field = app.text_input if key == "reviewer" else app.text_area
        field(key=key).set_value(typed)
    assert history.waivers("mine", "main") == {}
    app = button(app, "Write the waiver and decide again").click().run()
    assert app.title[0].value.startswith(":green[✓ PASS] with waivers · ")
    assert any("WAIVED until" in one.value for one in visit(path).markdown)
    assert history.get_run(run.id).verdict is Verdict.PASS
    assert [(one.canary, one.owner) for one in history.waivers("mine", "main").values()] == [("shops", "Jana")]
    assert [one.report.verdict for one in history.earlier_decisions(run.id)] == [Verdict.FAIL]
