"""The first page in a browser: what waits is signed in three clicks, and a phone's first screen says what may ship."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from driving import COUNT_CLICKS, IN_A_BROWSER, WAIT_S, clicks, drawn, problems_of, serving
from written_history import write_history

from q36eval.history import History, RunProgress
from q36eval.records import Verdict
from tests.app.judged_runs import REFERENCE, judge_run, open_history

pytestmark = IN_A_BROWSER
PHONE = {"width": 390, "height": 844}


def test_what_waits_for_a_signature_is_signed_in_three_clicks(browser: Any, tmp_path: Path) -> None:
    history = open_history(tmp_path)
    run = judge_run(history, 0, date(2026, 3, 1), family="mine", reference=REFERENCE, require_sign_off=True)
    with serving(Path(history.name)) as root:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(WAIT_S * 1000)
        page.add_init_script(COUNT_CLICKS)
        problems = problems_of(page)
        page.goto(root)
        page.get_by_text("✎ SIGN").wait_for()
        page.get_by_text("Waiting: main: It passes except for a signature.").wait_for()
        drawn(page)
        page.locator("[data-testid=stMain]").get_by_role("link", name="Sign").click()
        page.get_by_role("textbox", name="Your name").click()
        page.keyboard.type("Jana")
        page.keyboard.press("Tab")
        drawn(page)
        page.get_by_role("textbox", name="What did you look at").focus()  # by the keyboard
        page.keyboard.type("the report, and the flips that it names")
        page.keyboard.press("Tab")
        drawn(page)
        page.get_by_role("button", name="Sign and decide again").click()
        page.get_by_role("heading", name="✓ PASS").wait_for()
        assert clicks(page) == 3
        assert problems == []
        page.goto(root)
        page.get_by_text("✓ SHIP").wait_for()
        page.close()
    signed = history.get_run(run.id)
    history.close()
    assert signed.verdict is Verdict.PASS
    assert signed.report is not None
    assert [signature.owner for signature in signed.report.signed_by] == ["Jana"]


def test_a_phones_first_screen_says_what_may_ship_and_how_the_first_branch_stands(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    write_history(path)
    history = History.open(path)
    run = history.start_run(family="sandbox", branch="gptq-int4", identity=None, reference_identity=None)
    now = datetime.now(UTC) + timedelta(seconds=30)
    history.set_progress(RunProgress(run_id=run.id, stage="measuring the branch", done=420, total=1_900, at=now))
    history.close()
    with serving(path) as root:
        page = browser.new_page(viewport=PHONE)
        page.goto(root)
        page.get_by_text("✗ BLOCKED").first.wait_for()
        drawn(page)
        for shown in (
            page.locator(".banner"),
            page.get_by_text("left · measuring the branch 420").first,
            page.get_by_text("✗ BLOCKED").first,
        ):
            box = shown.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= PHONE["height"]
            assert box["x"] + box["width"] <= PHONE["width"]
        page.close()
