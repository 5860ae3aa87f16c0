"""Every format says the same verdict, the same bytes every time, and lets no text act: terminal, JSON and Markdown."""

import io
import json
import math
import re
import xml.etree.ElementTree as ET
from html import unescape as html_unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from junitparser import Failure, JUnitXml, Skipped
from lxml import etree
from markdown_it import MarkdownIt
from rich.console import Console

from q36eval.gate import CriterionVerdict, GateReport, decide
from q36eval.history.records import RunRecord
from q36eval.inert_text import plain
from q36eval.records import FailureCauses, FamilyCompetence, Measurement, ProbeName
from q36eval.reports import Document, json_schema, to_console, to_json
from q36eval.reports.card_report import to_card
from q36eval.reports.html_report import to_html
from q36eval.reports.json_report import RunSection
from q36eval.reports.junit_report import to_junit
from q36eval.reports.markdown_report import to_markdown
from q36eval.reports.plots import LEFT, RIGHT, Axis, Flips, Row, draw, flips
from tests.app.dashboard.driving import CHROMIUM, chromium
from tests.q36eval.gate.evidence import only
from tests.q36eval.reports.report_samples import (
    HOSTILE,
    accuracy,
    census,
    clean_report,
    hostile_report,
    measured,
    run_of,
    with_distances,
)

OWN_TAGS = {"h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "strong", "code"}
PEOPLE = (to_markdown, to_html, to_junit, to_card)
"""Formats for people, but for the terminal."""


def console_text(judged: GateReport, width: int = 120, *, colours: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=colours, color_system="standard" if colours else None).print(
        to_console(Document(judged, run_of()))
    )
    return stream.getvalue()


def test_the_same_input_gives_the_same_bytes() -> None:
    judged = clean_report()
    again = GateReport.model_validate_json(judged.model_dump_json())
    for write in (to_json, to_markdown, to_html):
        assert write(Document(judged, run_of(), measured())) == write(Document(again, run_of(), measured()))
    document = json.loads(to_json(Document(judged, run_of())))
    assert GateReport.model_validate(document["report"]) == judged
    assert list(document["report"]) == sorted(document["report"])


def test_plain_text_is_one_harmless_line() -> None:
    line = plain(HOSTILE + "\ud800", 10**6)
    assert line.encode("utf-8").decode() == line
    assert line.isprintable()
    assert not re.search(r"##\w*\[|::", line)
    assert len(plain(HOSTILE)) == 400
    hidden = "\u00ad\u200b\u3164\u2800\ufff9\U000e0041\U000e0100"  # tags spell sentences that no screen shows
    assert plain(hidden) == "\ufffd" * len(hidden)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_obeys_nothing_but_colours(width: int) -> None:
    text = re.sub(r"\x1b\[[\d;]*m", "", console_text(hostile_report(waive=True), width, colours=True))
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert "[red]a|b</b>" in text  # read as text, not as a style
    assert not [line for line in text.splitlines() if line.strip().startswith("::") or re.search(r"##\w*\[", line)]
    assert max(map(len, text.splitlines())) <= width


def test_markdown_renders_to_nothing_but_our_elements_and_json_is_ascii() -> None:
    text = to_markdown(Document(hostile_report(waive=True), run_of(), measured()))
    assert text.replace("\n", "").isprintable()
    rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text)
    tags = set(re.findall(r"</?([a-zA-Z][^\s/>]*)", rendered))
    assert tags <= OWN_TAGS
    assert not re.search(r"<\w+[^>]*\s(?!style=\"text-align)\w+=", rendered)
    assert "<code>" in rendered  # of our own commands
    assert not re.search(r"\w://|@all|#1", text)  # GitHub makes links of addresses, people and numbers
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {row.replace("\\|", "").count("|") for row in rows} == {4, 11}
    # and JSON is ASCII, and gives the text back
    text = to_json(Document(hostile_report(), run_of(), measured()))
    assert text.isascii()
    assert not re.search(r"##\w*\[", text)
    assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
    assert json.loads(text)["run"]["branch"] == HOSTILE


def test_the_margin_that_held_is_told_with_the_ceiling_and_both_sources() -> None:
    figure = {"scheme": "W4A16", "value": 0.014, "source": "the 88plug card"}
    policy = only("max_value", 0.1, margin={"source": "ours <b>", "schemes": [figure]}, id="kl")
    document = Document(decide(policy, [*measured(0.004), quantized("all", 1), quantized("W4A16", 1)]), run_of())
    for text in (*(write(document) for write in (to_markdown, to_html, to_junit)), console_text(document.report, 400)):
        plain_text = html_unescape(text.replace("\\", ""))
        assert [told for told in ("≤ 0.014", "(the 88plug card)", "≤ 0.1", "(ours") if told not in plain_text] == []
    assert "≤ 0.014 nats/token" in to_card(document)


def quantized(name: str, count: float) -> Measurement:
    update = {"probe": ProbeName.WEIGHTS, "metric": "quantized_tensors", "slice": name}
    return census("x", count).model_copy(update=update)


def test_what_was_not_measured_is_the_same_in_every_format() -> None:
    document = Document(hostile_report(), run_of("main"))
    (gone,) = (gap for gap in document.gaps if gap.criteria)
    (stage,) = (gap.stage for gap in document.gaps if gap.stage is not None)
    (failure,) = (gap.failure for gap in document.gaps if gap.failure is not None)
    assert [result.id for result in gone.criteria] == ["gone"]
    assert (stage.name, failure.kind) == ("evals", "skipped")
    for text in (to_markdown(document), console_text(document.report, 400), to_html(document)):
        shown = html_unescape(text).replace("\\", "")
        assert plain(gone.reason)[:40] in shown
        assert "not evaluated (800 planned)" in shown
    # a criterion without a number has no figure on a card, and its verdict elsewhere
    judged = clean_report()
    odd = judged.criteria[0].model_copy(update={"value": math.nan, "verdict": CriterionVerdict.FAIL, "reason": "NaN"})
    document = Document(judged.model_copy(update={"criteria": (odd, *judged.criteria[1:])}), run_of("main"))
    (gap,) = document.gaps
    assert gap.judged
    assert "## Not measured" not in to_markdown(document)
    assert ": NaN\n" in to_card(document).partition("### Not measured")[2]


HARD = FamilyCompetence(name="json-nested", items=100, informative=3, causes={"cut_off": 90, "wrong": 7})
EASY = FamilyCompetence(name="json-flat", items=400, informative=396, causes={"wrong": 4})
CAUSES = FailureCauses(branch={"cut_off": 91, "wrong": 12}, reference={"cut_off": 90, "wrong": 11})


def test_every_format_names_what_the_reference_cannot_do_and_why_answers_fail() -> None:
    found = accuracy("facts", 8, 4)
    names = tuple((EASY if row < 400 else HARD).name for row in range(len(found.clusters.units)))
    clusters = found.clusters.model_copy(update={"families": names})
    found = found.model_copy(update={"competence": (EASY, HARD), "causes": CAUSES, "clusters": clusters})
    report = decide(only("min_recovery", 0.9, id="facts", probe="evals", metric="accuracy", slice="facts"), [found])
    for written in (*(write(Document(report, run_of())) for write in PEOPLE), console_text(report, 400)):
        text = " ".join(written.replace("&#45;", "-").split())
        told = ("399 of 500 items", "3 of 100 in json-nested", "91 cut off", "90 cut off")
        assert [each for each in told if each not in text] == []


# -- JUnit XML as a strict schema and an independent parser read it

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parent / "junit.xsd"))


@pytest.mark.parametrize("judged", [clean_report(), hostile_report(), hostile_report(waive=True)])
def test_the_schema_accepts_it(judged: GateReport) -> None:
    for run in (None, run_of(), run_of("main", finished=None)):
        SCHEMA.assertValid(etree.fromstring(to_junit(Document(judged, run)).encode()))


def test_a_parser_reads_what_the_gate_said() -> None:
    (suite,) = JUnitXml.fromstring(to_junit(Document(hostile_report(), run_of())).encode())
    found = {case.name: [type(result) for result in case.result] for case in suite}
    assert found == {
        "good: Good": [],
        "bad: Bad": [Failure],
        "gone: Gone": [Skipped],
        "hint: Hint": [Skipped],
        "facts: Accuracy (facts)": [Failure],
        "needles: Accuracy (needles)": [],
        "kl: KL divergence from the reference": [Failure],
        "outputs-finite: Finite outputs": [],
        "verdict": [Skipped],
    }, "what decided fails, once"
    counted = (suite.tests, suite.failures, suite.errors, suite.skipped)
    assert counted == (9, 3, 0, 3)
    suite.update_statistics()
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == counted
    assert {prop.name: prop.value for prop in suite.properties()}["exit_code"] == "1"


def test_it_is_green_exactly_when_the_gate_passes_and_a_waived_failure_is_skipped_with_the_waiver() -> None:
    (suite,) = JUnitXml.fromstring(to_junit(Document(clean_report(), run_of("main"))).encode())
    assert [case.name for case in suite if case.result] == []
    assert suite.time == 90.5
    (suite,) = JUnitXml.fromstring(to_junit(Document(hostile_report(waive=True))).encode())
    (case,) = (case for case in suite if case.name == "bad: Bad")
    assert isinstance(case.result[0], Skipped)
    assert "waived by" in case.result[0].message


# -- the page


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


# -- the published schema


PUBLISHED = Path(__file__).parents[3] / "docs" / "schemas" / "report.schema.json"


@pytest.fixture(scope="module")
def published() -> Draft202012Validator:
    schema = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def document(report: GateReport, run: RunRecord | None = None, **more: Any) -> Any:
    return json.loads(to_json(Document(report, run, **more)))


def test_the_published_schema_is_the_codes_and_its_run_loses_nothing_but_report_and_import() -> None:
    assert PUBLISHED.read_text(encoding="utf-8") == json_schema(), "write it anew: q36eval report --schema"
    left_out = {"report", "imported"}
    assert set(RunSection.model_fields) == set(RunRecord.model_fields) - left_out
    run = run_of()
    assert document(clean_report(), run)["run"] == json.loads(run.model_dump_json(exclude=left_out))


@pytest.mark.long
def test_real_reports_hold_to_it(published: Draft202012Validator) -> None:
    not_finite = clean_report()
    odd = not_finite.criteria[0].model_copy(update={"value": math.nan, "to_turn": math.inf})
    not_finite = not_finite.model_copy(update={"criteria": (odd, *not_finite.criteria[1:])})
    for judged in (clean_report(), with_distances(hostile_report(waive=True)), hostile_report(), not_finite):
        for run in (None, run_of(), run_of("main", identity=None, finished=None)):
            published.validate(document(judged, run))
            published.validate(document(judged, run, measurements=measured()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("report", "verdict"), "MAYBE"),
        (("report", "criteria", 0, "p_pass"), "0.5"),
        (("report", "lanes", 0, "extra"), 1),
        (("run", "started"), None),
        (("schema",), "urn:q36eval:report:1"),
        (("report", "criteria", 0, "to_turn"), ...),
    ],
)
def test_other_documents_do_not(published: Draft202012Validator, path: tuple[Any, ...], value: Any) -> None:
    """Nor one that lacks a field (`...`): every field is promised."""
    body = document(clean_report(), run_of())
    inner = body
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    if value is ...:
        del inner[path[-1]]
    assert not published.is_valid(body)
