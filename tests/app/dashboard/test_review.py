"""The review page writes what a named person decided, shows the gate change, and refuses everybody else."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from driving import button, words_of
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
from tests.app.judged_runs import report_of

Visit = Callable[..., Any]
Failing = tuple[Path, RunRecord]
shown = partial(words_of, kinds=("text", "markdown", "header", "success", "error"))


@pytest.fixture
def failing(tmp_path: Path) -> Failing:
    """A history of one run that fails by its KL criteria alone; each test writes to its own."""
    path = tmp_path / "history.sqlite"
    history = History.open(path)
    run = write_run(history, "fp8-head", 1.5, 7, n_items=3)
    history.close()
    return path, run


def stored(path: Path, run: RunRecord) -> tuple[RunRecord, list[Waiver]]:
    history = History.open(path)
    found = history.get_run(run.id), list(history.waivers("sandbox", "fp8-head").values())
    history.close()
    return found


@pytest.mark.long
def test_an_early_stopped_fail_offers_no_waiver_form_and_says_what_it_takes(visit: Visit, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    history = History.open(path)
    run = write_run(history, "int2-experts", 4.0, 4, stopped=True)
    history.close()
    left_out = [one.id for one in run.report.criteria if one.verdict is CriterionVerdict.NOT_MEASURED]
    app = visit(path, "review", run=run.id)
    assert "full record first" in app.warning[0].value
    assert [one.value for one in app.code][:1] == ["q36eval gate --branch int2-experts --exhaustive"]
    assert f"{len(left_out)} of its {len(run.report.criteria)} criteria were not evaluated" in shown(app)
    assert "Waive" not in [tab.label for tab in app.tabs]
    history = History.open(path)
    waived = Waiver(owner="Eva", reason="x", criterion=run.report.decisive[0], expires=datetime.now(UTC).date())
    history.add_waiver("sandbox", "int2-experts", waived)
    decide_again(history, run, family="sandbox", branch="int2-experts", policy=None, on=waived.expires)
    history.close()
    assert "full record first" in visit(path, "review", run=run.id).warning[0].value, "a waiver completes no record"


@pytest.mark.long
def test_a_waiver_that_would_change_nothing_has_no_button_and_is_not_written(visit: Visit, failing: Failing) -> None:
    path, run = failing
    passing = next(one for one in report_of(run).criteria if one.verdict is CriterionVerdict.PASS)
    app = visit(path, "review", run=run.id, waive="czech-discount")
    assert "has nothing to waive" in "".join(one.value for one in app.warning)
    assert passing.id not in app.selectbox(key="waive_name a criterion").options
    until = datetime.now(UTC).date() + timedelta(days=9)
    history = History.open(path)
    failed = run.report.decisive[0]
    history.add_waiver("sandbox", "fp8-head", Waiver(owner="Jana", reason="known", criterion=failed, expires=until))
    history.close()
    draft = Waiver(owner="Eva", reason="more", criterion=failed, expires=until - timedelta(days=1))
    reader, shown_run = Reader(path), Reader(path).history.get_run(run.id)
    with pytest.raises(UsageError, match="is waived already, until"):
        waive(reader, shown_run, draft, "Eva", "more")
    app = visit(path, "review", run=run.id)
    app = app.selectbox(key="waive_name a criterion").set_value(failed).run()
    app = app.date_input(key="waive_until").set_value(until - timedelta(days=1)).run()
    assert "is waived already" in shown(app)
    assert "Write the waiver and decide again" not in [one.label for one in app.button]
    assert len(stored(path, run)[1]) == 1


@pytest.mark.long
def test_signing_and_blessing_are_written_under_the_name(visit: Visit, failing: Failing) -> None:
    path, run = failing
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
    history = History.open(path)
    assert history.archived()["sandbox", "fp8-head"].reason == "superseded"
    (blessing,), (signature,) = history.blessings("fp8-head", "sandbox"), history.sign_offs(run.id)
    history.close()
    assert (blessing.owner, signature.owner, signature.reason) == ("Eva", "Eva", "read the flips")
    assert stored(path, run)[0].verdict is Verdict.FAIL, "a signature turns no FAIL"


@pytest.mark.long
def test_a_report_of_another_version_is_decided_again_and_then_signed(visit: Visit, failing: Failing) -> None:
    path, run = failing
    history, report = History.open(path), report_of(run)
    other = report.model_copy(update={"notes": ("as an earlier version said it",)})
    history.decide_again(run.id, other, run.circumstances)
    history.close()
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app = button(app, "Decide again").click().run()
    assert "Sign and decide again" in [one.label for one in app.button]


@pytest.mark.long
def test_a_second_click_writes_nothing_more(visit: Visit, failing: Failing) -> None:
    """What the first click settled is no longer offered, and the click must not fall to what is offered instead."""
    path, run = failing
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="waive_reason").set_value("fixed in the next build")
    clicked = button(app, "Write the waiver and decide again")
    app = clicked.click().run()
    (first,) = stored(path, run)[1]
    assert app.text_area(key="waive_reason").value == "", "the next waiver has a reason of its own"
    clicked.click().run()
    app.text_area(key="waive_reason").set_value("another reason")
    clicked.click().run()
    assert stored(path, run)[1] == [first]


@pytest.mark.long
def test_nothing_is_written_on_a_verdict_that_is_not_the_one_shown(visit: Visit, failing: Failing) -> None:
    """Somebody else waives and decides again before the click."""
    path, run = failing
    app = visit(path, "review", run=run.id)
    app.text_input(key="reviewer").set_value("Eva")
    app.text_area(key="sign_reason").set_value("I have read why it fails")
    app.text_area(key="bless_reason").set_value("the level to hold")
    history, today = History.open(path), datetime.now(UTC).date()
    known = Waiver(owner="Jana", reason="known", criterion=report_of(run).decisive[0], expires=today)
    history.add_waiver("sandbox", "fp8-head", known)
    as_before = {"family": run.family, "branch": run.branch, "policy": None, "require_sign_off": False}
    decide_again(history, run, on=today, **as_before)
    told = ""
    for clicked in [button(app, label) for label in ("Sign and decide again", "Bless this run")]:
        app = clicked.click().run()
        told += "\n".join(one.value for one in app.warning)
    assert "Somebody decided since" in told
    assert (history.sign_offs(run.id), history.blessings("fp8-head", "sandbox")) == ([], [])
    history.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["", " \u200b", "Jana\u202e", "\u2060", "--", "Eva\x00"])
def test_nobody_writes_under_a_name_that_others_cannot_read(
    failing: Failing, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = failing
    monkeypatch.setattr(sys, "argv", ["main.py", str(path), "--local"])
    with pytest.raises(UsageError, match="name"):
        bless(Reader(path), run, name, "because")


@pytest.mark.long
def test_read_only_hides_and_refuses_all_writing(
    visit: Visit, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = failing
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
    assert permission_of(here, {}, ()).may_write
    assert not permission_of(shared, {}, ()).may_write
    assert not permission_of(here, {"is_logged_in": False}, ()).may_write
    assert permission_of(shared, eva, ()).name == "eva@example.org"
    assert permission_of(shared, eva, ("*@EXAMPLE.org",)).may_write
    assert not permission_of(shared, eva, ("jana@example.org",)).may_write
    assert not permission_of(shared, eva | {"email_verified": False}, ()).may_write
    assert not permission_of(shared, {"is_logged_in": True, "name": "Eva"}, ()).may_write
    assert not permission_of(Started("x", read_only=True), eva, ()).may_write


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
