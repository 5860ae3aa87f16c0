"""What once misled a reviewer, in a real browser: each case as it was met, and what the page says of it now."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from driving import CHROMIUM, ROOT, WAIT_S, chromium, drawn, serving
from written_history import write_history

from tests.app.judged_runs import judge_run, open_history

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


@contextmanager
def at(browser: Any, address: str, wanted: str) -> Iterator[Any]:
    """A page on which these words can be seen, drawn to its end."""
    page = browser.new_page()
    page.goto(address)
    page.get_by_text(wanted).first.wait_for(state="visible")
    drawn(page)
    yield page
    page.close()


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
