"""A view can be passed on: its address holds what was chosen, one click copies it, the tab says what it is."""

from pathlib import Path
from typing import Any

import pytest
from driving import CHROMIUM, WAIT_S, chromium, clipboard, drawn, serving

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; apt-get install chromium")
Written = tuple[Path, dict[str, Any]]


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("name", ["127.0.0.1", "review.test"])
def test_one_click_copies_the_address(written: Written, name: str) -> None:
    """Also where no browser offers a clipboard: on plain http, under another name than this machine's own."""
    pytest.importorskip("playwright.sync_api")
    options = ("--host-resolver-rules=MAP review.test 127.0.0.1",)
    with serving(written[0], "--allow-host", "review.test") as root, chromium(*options) as browser:
        page = browser.new_context().new_page()
        page.set_default_timeout(WAIT_S * 1000)
        address = f"{root.replace('127.0.0.1', name)}/run?run={written[1]['ruined'].id}"
        page.goto(address)
        page.get_by_text("✗ FAIL").first.wait_for()
        drawn(page)
        assert page.evaluate("window.isSecureContext") is (name == "127.0.0.1")
        page.get_by_role("button", name="Copy link to this view").click()
        page.get_by_text("Copied").wait_for()
        assert clipboard(page) == page.url == address
        page.evaluate("document.execCommand = () => false; delete Navigator.prototype.clipboard")
        page.get_by_role("button", name="Copy link to this view").click()
        assert page.get_by_label("The address of this view").input_value() == address
        assert page.evaluate("window.getSelection().toString()") == address


@pytest.mark.slow
@in_a_browser
def test_the_tab_names_page_branch_and_run(written: Written) -> None:
    pytest.importorskip("playwright.sync_api")
    run = written[1]["ruined"].id
    named = {
        "": "What may ship · q36eval",
        "branch?branch=int2-experts&family=sandbox": "Branch · int2-experts · family sandbox · q36eval",
        f"review?run={run}": f"Review · int2-experts · {run} · q36eval",
    }
    named |= {
        f"{page.lower()}?run={run}": f"{page} · int2-experts · {run} · q36eval"
        for page in ("Run", "KL", "Evals", "Canaries")
    }
    with serving(written[0]) as root, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(WAIT_S * 1000)
        for address, title in named.items():
            page.goto(f"{root}/{address}")
            page.wait_for_function("title => document.title === title", arg=title)
