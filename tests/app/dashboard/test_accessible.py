"""For people who do not see colours, or use no mouse: contrast, and axe-core in both themes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import CHROMIUM, WAIT_S, chromium, drawn, serving

from q36eval.app.dashboard import verdict_style
from q36eval.reports.plots import BLUE, COLOURS, GREY

WHITE, DARK = "#ffffff", "#1d1c19"
TINTED = {"light": "#dfe8f3", "dark": "#27303c"}
"""What is chosen stands on a tint of its own colour."""

STREAMLITS = ("list", "listitem")
"""Rules that the titles of sections in Streamlit's own list of pages, `STREAMLITS_PLACE`, break."""
STREAMLITS_PLACE = "stSidebarNav"

IMPACTS = ("serious", "critical")
_FIND = """async (place) => (await axe.run(document, {resultTypes: ['violations']})).violations.flatMap(
  rule => rule.nodes.map(node => {
    const element = document.querySelector(node.target[0]);
    const theirs = element?.closest('[data-testid^=' + place + ']') != null;
    return [rule.impact, rule.id, theirs, node.html.slice(0, 200) + ' ' + (node.any[0]?.message ?? '')];
  }))"""


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colour", [*COLOURS.values(), BLUE, GREY, verdict_style.TEAL, verdict_style.ORANGE])
def test_marks_stand_out_in_both_themes(colour: str) -> None:
    """WCAG asks 3:1 of what is not text."""
    assert min(contrast(colour, background) for background in (WHITE, DARK)) >= 3


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_can_be_read_in_both_themes(theme: str) -> None:
    background = {"light": WHITE, "dark": DARK}[theme]
    assert contrast(verdict_style.AXES[theme], background) >= 4.5
    assert min(contrast(verdict_style.PRIMARY[theme], one) for one in (background, TINTED[theme])) >= 4.5


@pytest.fixture(scope="module")
def served(written: tuple[Path, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; install one: apt-get install chromium")
    with serving(written[0]) as root:
        yield root, written[1]


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_of_ours(served: tuple[str, dict[str, Any]], theme: str) -> None:
    base = pytest.importorskip("axe_playwright_python.base")
    root, runs = served
    run = {short: f"run={record.id}" for short, record in runs.items()}
    pages = {
        "": "✗ BLOCKED",
        "branch?family=sandbox&branch=fp8-head": "Blessed run",
        f"run?{run['ruined']}": "FAIL",
        f"run?{run['crashed']}": "NOT MEASURED",
        f"kl?{run['pass']}": "Tokens by their KL",
        f"evals?{run['pass']}": "Recovery is",
        f"canaries?{run['ruined']}&outcome=regression": "REGRESSION",
        f"compare?a={runs['pass'].id}&b={runs['ruined'].id}": "Flips between",
        "review": "wait for a person",
        f"review?{run['ruined']}": "Your name",
        "run?run=nope": "Nothing is shown",
    }
    ours = []
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1400, "height": 1000}, color_scheme=theme).new_page()
        page.set_default_timeout(WAIT_S * 1000)
        for address, wanted in pages.items():
            page.goto(f"{root}/{address}")
            page.get_by_text(wanted).first.wait_for()
            drawn(page)
            page.evaluate(Path(base.AXE_FILE_PATH).read_text(encoding="utf-8"))
            for impact, rule, in_their_widget, where in page.evaluate(_FIND, STREAMLITS_PLACE):
                if impact in IMPACTS and not (in_their_widget and rule in STREAMLITS):
                    ours.append(f"{address}: {rule} {where}")
    assert ours == []
