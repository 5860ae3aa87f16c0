"""What once misled a reviewer, in a real browser: each case as it was met, and what the page says of it now."""

from datetime import date
from pathlib import Path
from typing import Any

from driving import IN_A_BROWSER, WAIT_S, drawn, serving, write

from tests.app.judged_runs import judge_run, open_history

pytestmark = IN_A_BROWSER


def test_of_two_tabs_that_click_at_once_one_writes(browser: Any, tmp_path: Path) -> None:
    """Case 5: both show the button when it is clicked in both."""
    history = open_history(tmp_path)
    run = judge_run(history, 120, date(2026, 3, 1))
    with serving(Path(history.name)) as root:
        context = browser.new_context(viewport={"width": 1400, "height": 1000})
        context.set_default_timeout(WAIT_S * 1000)
        tabs = [context.new_page() for _ in range(2)]
        buttons = []
        for number, page in enumerate(tabs):
            page.goto(f"{root}/review?run={run.id}")
            write(page, "Your name", f"Jana {number}")
            write(page, "What is known about it", "a near tie")
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
