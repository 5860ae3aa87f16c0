"""The dashboard as a person sees it: `q36eval ui` in a real Chromium, in the light and the dark theme."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from written_history import HOSTILE, write_history

pytestmark = pytest.mark.slow

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
SCREENS = os.environ.get("Q36EVAL_SCREENS")
WAIT_S = 60.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; install one, for example: apt-get install chromium")
    pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright: pip install playwright")
    path = tmp_path_factory.mktemp("ui") / "history.sqlite"
    runs = write_history(path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code = "from app.cli import main; main()"
    command = [sys.executable, "-c", code, "ui", "--port", str(port), "--history", str(path)]
    with subprocess.Popen(command, start_new_session=True) as server:
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", server)
            yield f"http://127.0.0.1:{port}", runs
        finally:
            os.killpg(server.pid, 15)


def _wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError("the dashboard did not start")


@pytest.fixture(scope="module")
def browser(served: object) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def _visit(browser: Any, url: str, wanted: str, theme: str, name: str) -> tuple[str, list[str]]:
    """The visible text of a page once `wanted` shows, and what went wrong on it."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000}, color_scheme=theme)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.goto(url)
    page.get_by_text(wanted).first.wait_for(timeout=WAIT_S * 1000)
    page.locator("[data-testid=stStatusWidget]").wait_for(state="detached", timeout=WAIT_S * 1000)
    if name == "canaries":  # its answers may come after the last of the headings
        page.get_by_text("<script>alert('owned')</script>").first.wait_for(timeout=WAIT_S * 1000)
    if SCREENS:
        # charts and canvases draw after the text has come
        page.wait_for_timeout(2500)
        height = page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        page.set_viewport_size({"width": 1400, "height": min(4000, max(700, height))})
        page.wait_for_timeout(1500)
        page.screenshot(path=f"{SCREENS}/{name}-{theme}.png")
    text = page.locator("[data-testid=stMain]").inner_text()
    links = page.eval_on_selector_all("a, img, script", "nodes => nodes.map(n => n.href || n.src || '')")
    problems += [link for link in links if link.startswith("javascript:") or link.startswith("http://x/")]
    problems += [error.inner_text() for error in page.locator("[data-testid=stException]").all()]
    page.close()
    return text, problems


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "address", "wanted"),
    [
        ("overview", "/", "✗ FAIL"),
        ("run", "/run?run={ruined}", "Criteria against their margins"),
        ("run-crashed", "/run?run={crashed}", "NOT MEASURED"),
        ("branch", "/branch?family=sandbox&branch=fp8-head", "Blessed run"),
        ("canaries", "/canaries?run={ruined}", "REGRESSION"),
    ],
)
def test_every_page_draws_and_model_text_stays_inert(
    browser: Any, served: tuple[str, dict[str, Any]], theme: str, name: str, address: str, wanted: str
) -> None:
    root, runs = served
    url = root + address.format(**{short: run.id for short, run in runs.items()})
    text, problems = _visit(browser, url, wanted, theme, name)
    assert problems == []
    if name == "canaries":
        # shown letter by letter, which is only so when nothing read it as markup
        assert HOSTILE.split(" \x1b")[0] in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_links_lead_from_branch_to_run_to_canaries(browser: Any, served: tuple[str, dict[str, Any]]) -> None:
    root, runs = served
    page = browser.new_page()
    page.goto(root)
    # the second row is int2-experts: branches are sorted by name
    page.locator("[data-testid=stMain]").get_by_role("link", name="Run", exact=True).nth(1).click(timeout=WAIT_S * 1000)
    page.wait_for_url(f"**/run?run={runs['ruined'].id}", timeout=WAIT_S * 1000)
    page.get_by_role("link", name="Canaries of this run").click(timeout=WAIT_S * 1000)
    page.wait_for_url(f"**/canaries?run={runs['ruined'].id}", timeout=WAIT_S * 1000)
    page.get_by_text("Difference:").first.click(timeout=WAIT_S * 1000)
    page.get_by_text("[-90-]{+80+}").first.wait_for(timeout=WAIT_S * 1000)
    page.close()
