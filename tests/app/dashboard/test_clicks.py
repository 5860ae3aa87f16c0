"""Journeys in the browser whose clicks are counted: compare, since when it drifts, and what is shown as a file."""

from datetime import date
from pathlib import Path
from typing import Any

from driving import IN_A_BROWSER, WAIT_S, chromium, drawn, problems_of, serving

from tests.app.judged_runs import REFERENCE, judge_run, open_history

pytestmark = IN_A_BROWSER


class Clicks:
    """A page of the browser that counts what a person does on it."""

    def __init__(self, page: Any) -> None:
        self.page, self.count = page, 0
        page.set_default_timeout(WAIT_S * 1000)

    def click(self, of: Any, then: str) -> None:
        """Click it, and wait until these words show and all is drawn."""
        of.click()
        self.count += 1
        self.page.get_by_text(then).first.wait_for()
        drawn(self.page)

    def open(self, address: str, wanted: str) -> None:
        self.page.goto(address)
        self.page.get_by_text(wanted).first.wait_for()
        drawn(self.page)


def test_compare_and_save_what_it_shows(written: tuple[Path, dict[str, Any]]) -> None:
    """Journeys (d), at most three clicks, and (g), one."""
    runs = written[1]
    with serving(written[0]) as root, chromium() as browser:
        at = Clicks(browser.new_context(viewport={"width": 1400, "height": 1000}).new_page())
        at.open(root, "✗ BLOCKED")
        problems = problems_of(at.page)
        main = at.page.locator("[data-testid=stMain]")
        at.click(main.get_by_role("link", name="fp8-head", exact=True), "Blessed run")
        at.click(main.get_by_role("link", name="Compare"), "Flips between the two")
        assert at.count <= 3
        at.page.wait_for_url(f"**/compare?*a={runs['blessed'].id}*")
        assert runs["pass"].id in at.page.url, "the newest finished run stands against the blessed one"
        at.page.goto(f"{root}/compare?a={runs['pass'].id}&b={runs['ruined'].id}")
        at.page.locator("del").first.wait_for()
        sides = at.page.locator(".st-key-compare_sides")
        sides.get_by_text("fp8-head").first.wait_for()
        at.page.locator("del").last.scroll_into_view_if_needed()
        assert sides.is_visible()
        assert sides.bounding_box()["y"] >= 0, "which run is which stays in sight"
        drawn(at.page)
        before = at.count
        with at.page.expect_download() as download:
            at.click(at.page.locator("[data-testid=stDownloadButton] button").first, "Criteria")
        assert at.count - before == 1
        assert download.value.path().read_text("utf-8-sig").startswith("field,A,B")
        at.page.get_by_role("button", name="Swap").click()
        at.page.wait_for_url(f"**/compare?*a={runs['ruined'].id}*")
        assert problems == []


def test_since_when_a_branch_drifts_is_one_click_from_the_first_page(tmp_path: Path) -> None:
    """Journey (e): the run that it began with and its day stand on the first screen."""
    history = open_history(tmp_path)
    about = {"family": "mine", "branch": "sinking", "reference": REFERENCE}
    runs = [judge_run(history, broken, date(2026, 3, 1), **about) for broken in (0, 0, 0, 0, 16, 16, 16, 16)]
    history.bless(runs[0].id, "Jana", "good")
    history.close()
    with serving(Path(history.name)) as root, chromium() as browser:
        at = Clicks(browser.new_context(viewport={"width": 1400, "height": 1000}).new_page())
        at.open(root, "Drifting for the worse")
        main = at.page.locator("[data-testid=stMain]")
        at.click(main.get_by_role("link", name="sinking").first, "How to read these charts")
        assert at.count <= 1
        since = at.page.get_by_text(f"since run {runs[4].id}")
        assert since.count() == 2, "of the branch and of its metric, and nowhere a third time"
        assert since.first.bounding_box()["y"] < 1000, "on the first screen"
        assert main.get_by_role("link", name="The run it began with").is_visible()
