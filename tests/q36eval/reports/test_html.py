"""The HTML report: one page that runs nothing and fetches nothing."""

import math
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from q36eval.reports import Document
from q36eval.reports.html_report import to_html
from q36eval.reports.plots import LEFT, RIGHT, Axis, Flips, Row, draw, flips
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
        self.attributes |= {name for name, value in attrs if name != "href" or not (value or "").startswith("#s")}


def test_text_brings_no_element_and_no_attribute() -> None:
    hostile, clean = (
        _Elements(hostile_page()),
        _Elements(to_html(Document(clean_report(), run_of("main"), measured(0.001)))),
    )
    assert not hostile.tags & {"script", "img", "iframe", "link", "object", "form"}
    assert hostile.tags - clean.tags <= {"ul", "li", "b"}  # lists of reasons
    assert not [name for name in hostile.attributes if name.startswith("on") or name in ("href", "src", "style")]
    assert hostile_page().replace("\n", "").isprintable()


def test_flips_are_counted_as_items_are_and_a_figure_draws_one_bar_per_row() -> None:
    found = {one.name: one for one in flips(measured())}
    assert found["evals: facts"] == Flips("evals: facts", lost=100, gained=10, of=400)
    assert found["evals: needles"] == Flips("evals: needles", lost=4, gained=4, of=400)
    # an arrow where it runs over
    axis = Axis(0.0, 1.0, {0.0: "0", 1.0: "1"}, "share")
    rows = [Row("$a$ <b>", "w", 0.5, 0.2, 3.0), Row("c", "w", math.nan, math.nan, 1.0)]
    svg = ET.fromstring(draw(rows, axis, 0.8))
    words = [node.text for node in svg.iter(f"{SVG}text")]
    assert {"$a$ <b>", "c", "w", "share"} <= set(words)
    assert [node.get("class") for node in svg.iter(f"{SVG}path") if "class" in node.attrib] == ["right"]
    assert [float(node.get("cx", "nan")) for node in svg.iter(f"{SVG}circle")] == [(LEFT + RIGHT) / 2]
    assert not [node for node in svg.iter() if "style" in node.attrib]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_runs_nothing_and_the_policy_of_the_page_forbids_what_text_might_bring(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    evil = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x'><p style='color: red'>x</p></main>"
    path.write_text(hostile_page(), encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 500, "height": 900})
        said: list[str] = []
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: said.append(request.url))
        page.goto(f"file://{path}")
        assert said == [f"file://{path}"]
        assert page.inner_text("main").startswith("✗ FAIL with waivers")
        assert page.evaluate("document.documentElement.scrollWidth") <= 500
        path.write_text(hostile_page().replace("</main>", evil), encoding="utf-8")
        page.goto(f"file://{path}")
        assert page.title() != "owned"
        assert len([message for message in said if "Content Security Policy" in message]) == 3
