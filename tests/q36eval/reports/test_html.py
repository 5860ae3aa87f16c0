"""The HTML report in a real browser: one page that runs nothing, fetches nothing and says everything."""

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from q36eval.reports import Document
from q36eval.reports.flips import Flips, flips
from q36eval.reports.html_report import to_html
from q36eval.reports.plots import LEFT, RIGHT, Axis, Row, draw
from tests.app.dashboard.driving import CHROMIUM, chromium
from tests.q36eval.reports.report_samples import clean_report, hostile_report, measured, run_of, with_distances

SVG = "{http://www.w3.org/2000/svg}"


def hostile_page() -> str:
    return to_html(Document(with_distances(hostile_report(waive=True)), run_of(family="f" * 200), measured()))


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_text_brings_no_element_and_no_attribute() -> None:
    hostile, clean = (
        _Elements(hostile_page()),
        _Elements(to_html(Document(clean_report(), run_of("main"), measured(0.001)))),
    )
    assert not hostile.tags & {"script", "img", "a", "iframe", "link", "object", "form"}
    assert hostile.tags - clean.tags <= {"ul", "li", "b"}  # lists of reasons
    assert not [name for name in hostile.attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert hostile_page().replace("\n", "").isprintable()


def test_flips_are_counted_as_items_are() -> None:
    found = {one.name: one for one in flips(measured())}
    assert found["evals: facts"] == Flips("evals: facts", lost=100, gained=10, of=400)
    assert found["evals: needles"] == Flips("evals: needles", lost=4, gained=4, of=400)


def test_a_figure_draws_one_bar_per_row_and_an_arrow_where_it_runs_over() -> None:
    axis = Axis(0.0, 1.0, {0.0: "0", 1.0: "1"}, "share")
    rows = [Row("$a$ <b>", "w", 0.5, 0.2, 3.0), Row("c", "w", math.nan, math.nan, 1.0)]
    svg = ET.fromstring(draw(rows, axis, 0.8))
    words = [node.text for node in svg.iter(f"{SVG}text")]
    assert {"$a$ <b>", "c", "w", "share"} <= set(words)
    uses = [float(node.get("x", "nan")) for node in svg.iter(f"{SVG}use")]
    assert uses == pytest.approx([RIGHT, (LEFT + RIGHT) / 2]), "an arrow at the end, a dot at the value"
    assert not [node for node in svg.iter() if "style" in node.attrib]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; install one, for example: apt-get install chromium")
    with chromium() as opened:
        yield opened


def test_a_browser_runs_nothing_and_shows_everything(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(hostile_page(), encoding="utf-8")
    problems: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url))
    page.goto(f"file://{path}")
    text = page.inner_text("main")
    assert problems == [f"file://{path}"]
    assert text.startswith("✗ FAIL with waivers ffff")
    for told in ("<script>alert('owned')</script>", "KL divergence by slice", "-100 +10 of 400", "NOT MEASURED"):
        assert told in re.sub(r"\s+", " ", text) or told in re.sub(r"\s+", " ", page.content())
    for width in (1200, 500):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1200, "height": 900})
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert _contrast(page, "body") > 7
        for verdict in ("PASS", "FAIL", "NOT_MEASURED"):
            assert _contrast(page, f".verdict.{verdict}") > 4.5  # WCAG 2.2, success criterion 1.4.3
    page.close()


def test_the_policy_of_the_page_forbids_scripts_and_requests(browser: Any, tmp_path: Path) -> None:
    """Were text ever let through, the page's own policy would still hold it back."""
    path = tmp_path / "report.html"
    evil = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x'><p style='color: red'>x</p></main>"
    path.write_text(hostile_page().replace("</main>", evil), encoding="utf-8")
    page = browser.new_page()
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(f"file://{path}")
    assert page.title() != "owned"
    assert len([message for message in refused if "Content Security Policy" in message]) == 3
    page.close()


def _contrast(page: Any, selector: str) -> float:
    """Contrast ratio of an element's text on the page's ground (WCAG 2.2, "contrast ratio")."""
    colours = page.evaluate(
        "s => [document.querySelector(s), document.body].map((e, i) => "
        "getComputedStyle(e)[i ? 'backgroundColor' : 'color'].match(/\\d+/g).slice(0, 3).map(Number))",
        selector,
    )
    ink, ground = (
        sum(
            weight * (c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4)
            for weight, c in zip((0.2126, 0.7152, 0.0722), colour, strict=True)
        )
        for colour in colours
    )
    return (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
