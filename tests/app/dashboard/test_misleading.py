"""What once misled a reviewer, in a real browser: each case as it was met, and what the page says of it now."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from driving import CHROMIUM, ROOT, WAIT_S, chromium, drawn, serving
from written_history import POLICY, write_history, write_run

from q36eval.gate import Waiver
from q36eval.gate.policy_file import read_policy
from tests.app.judged_runs import REFERENCE, judge_run, open_history

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; install one: apt-get install chromium"),
]
MAIN = "[data-testid=stMain]"
Served = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install playwright")
    with chromium() as opened:
        context = opened.new_context(viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(WAIT_S * 1000)
        yield context


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("misleading") / "history.sqlite"
    runs = write_history(path)
    with serving(path) as root:
        yield root, runs


@contextmanager
def at(browser: Any, address: str, wanted: str) -> Iterator[Any]:
    """A page on which these words can be seen, drawn to its end."""
    page = browser.new_page()
    page.goto(address)
    page.get_by_text(wanted).first.wait_for(state="visible")
    drawn(page)
    yield page
    page.close()


def test_a_pass_that_waits_or_is_waived_is_no_clean_one(browser: Any, tmp_path: Path) -> None:
    """Case 1: both lanes PASS and the whole does not, or does until a day."""
    history, until = open_history(tmp_path), datetime.now(UTC).date() + timedelta(days=9)
    judge_run(history, 0, date(2026, 3, 1), family="mine", reference=REFERENCE, require_sign_off=True)
    waivers = tuple(
        Waiver(owner="Ada", reason="known", criterion=one.id, expires=until) for one in read_policy(POLICY).criteria
    )
    for waiver in waivers:
        history.add_waiver("sandbox", "int2-experts", waiver)
    write_run(history, "int2-experts", 4.0, 4, waivers=waivers)
    history.close()
    with serving(Path(history.name)) as root, at(browser, root, "✎ SIGN") as page:
        chips = page.locator(f"{MAIN} .stMarkdownBadge").all_inner_texts()
        assert sorted(chips) == ["✎ SIGN", f"✓ WAIVED until {until} by Ada"]
        mine, sandbox = page.locator(".banner").all_inner_texts()
        assert mine.startswith("mine – Structured and free-form: nothing may ship. Waiting: main: ")
        assert "int2-experts (by waivers) may ship" in sandbox


@pytest.mark.parametrize("address", ["run?run=nope", "run?run=2", "branch?branch=zzz", "compare?a=zz", "compare?b=zz"])
def test_a_dead_link_stops_in_sight(browser: Any, served: Served, address: str) -> None:
    """Case 2: nothing of another run is drawn, and the address stays what it was."""
    with at(browser, f"{served[0]}/{address}", "Nothing is shown.") as page:
        assert page.url == f"{served[0]}/{address}"
        assert page.locator(f"{MAIN} h2").count() == 0
        assert page.locator(f"{MAIN} .q36-table").count() == 0
        assert page.locator(f"{MAIN} .stMarkdownBadge").count() == 0


def test_the_sidebar_leads_from_a_run_to_its_own_branch(browser: Any, served: Served) -> None:
    """Case 3."""
    root, runs = served
    with at(browser, f"{root}/run?run={runs['crashed'].id}", "NOT MEASURED") as page:
        page.locator("[data-testid=stSidebarNav]").get_by_role("link", name="Branch").click()
        page.wait_for_url("**/branch?family=sandbox&branch=main")
        page.get_by_text("How to read these charts").wait_for()


def test_compare_counts_what_was_lost_and_holds_two_runs_apart(browser: Any, served: Served) -> None:
    """Case 4: flips of required prompts, lost answers, two sides, and the newest finished run of a branch."""
    root, runs = served
    with at(browser, f"{root}/compare?a={runs['pass'].id}&b={runs['ruined'].id}", "moved for the worse") as page:
        words = page.get_by_text("moved for the worse").inner_text()
        assert "; 0 moved for the worse" not in words
        assert "0 items that A answers rightly are lost" not in words
        moved = page.locator(f"{MAIN} tr", has_text="must-pass-freeform").inner_text()
        assert "▼ worse" in moved
    with at(browser, f"{root}/compare", "Flips between the two") as page:
        sides = page.locator(".st-key-compare_sides a").all_inner_texts()
        assert len(set(sides)) == 2
    history = f"{root}/compare?family=sandbox&branch=fp8-head"
    with at(browser, history, "Flips between the two") as page:
        page.wait_for_url(f"**a={runs['blessed'].id}*")
        assert f"b={runs['pass'].id}" in page.url


def test_of_two_tabs_that_click_at_once_one_writes(browser: Any, tmp_path: Path) -> None:
    """Case 5: both show the button when it is clicked in both."""
    history = open_history(tmp_path)
    run = judge_run(history, 120, date(2026, 3, 1))
    with serving(Path(history.name)) as root:
        tabs = [browser.new_page() for _ in range(2)]
        buttons = []
        for number, page in enumerate(tabs):
            page.goto(f"{root}/review?run={run.id}")
            for label, words in (("Your name", f"Jana {number}"), ("What is known about it", "a near tie")):
                page.get_by_role("textbox", name=label).fill(words)
                page.keyboard.press("Tab")
                drawn(page)
            buttons.append(page.get_by_role("button", name="Write the waiver and decide again"))
        for button in buttons:
            button.wait_for()
        for button in buttons:
            button.click(no_wait_after=True)
        said = []
        for page in tabs:
            page.get_by_text("Written.").or_(page.get_by_text("Somebody decided")).or_(
                page.get_by_text("Nothing was written")
            ).first.wait_for()
            drawn(page)
            said.append(page.get_by_text("Written.", exact=True).count())
            page.close()
    assert sorted(said) == [0, 1]
    assert len(history.waivers("sandbox", "main")) == 1
    history.close()


GATE = """
import sys, time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from q36eval.history import History, RunProgress
from q36eval.locks import exclusive
history, said = History.open(sys.argv[1]), datetime.now(UTC) - timedelta(minutes=8)
run = history.start_run(family="sandbox", branch="gptq-int4", identity=None, reference_identity=None)
with exclusive(Path(sys.argv[1]).parent / "runs" / f"{run.id}.lock"):
    history.set_progress(RunProgress(run_id=run.id, stage="measuring the branch", done=420, total=1_900, at=said))
    print(run.id, flush=True)
    time.sleep(3_600)
"""
"""What a gate holds while it measures, its last word eight minutes old."""


def test_a_run_whose_process_has_ended_does_not_run(browser: Any, tmp_path: Path) -> None:
    """Case 6: as soon as it has, whatever it said last; until then it does."""
    path = tmp_path / "history.sqlite"
    write_history(path)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with (
        serving(path) as root,
        subprocess.Popen(
            [sys.executable, "-c", GATE, str(path)], stdout=subprocess.PIPE, text=True, env=environment
        ) as gate,
    ):
        assert gate.stdout is not None
        run = gate.stdout.readline().strip()
        with at(browser, root, "measuring the branch 420 of 1,900"):
            gate.kill()
        gate.wait()
        with at(browser, f"{root}/?open=unfinished", "its process has ended") as page:
            assert page.get_by_text("Running: gptq-int4").count() == 0
            assert page.get_by_text(f"--resume {run}").first.is_visible()
        with at(browser, f"{root}/run?run={run}", "has ended") as page:
            assert page.get_by_text("is going on").count() == 0
            assert page.get_by_text(f"--resume {run}").first.is_visible()


def test_a_history_that_was_deleted_is_not_an_empty_one(browser: Any, tmp_path: Path) -> None:
    """Case 6: while the server runs."""
    path = tmp_path / "history.sqlite"
    write_history(path)
    with serving(path) as root:
        with at(browser, root, "✗ BLOCKED"):
            pass
        for file in tmp_path.glob("history.sqlite*"):
            shutil.rmtree(file) if file.is_dir() else os.remove(file)
        with at(browser, root, "was there and is gone") as page:
            assert page.get_by_text("No run yet").count() == 0
