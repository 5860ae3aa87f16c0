"""Every format of every run of written histories: nothing of Python shows, the worst is first, a page loads nothing."""

import html
import math
import re
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import lxml.html
import pytest

from q36eval.app.cli.report_formats import FORMATS, document_of
from q36eval.gate import Waiver
from q36eval.history import History, RunRecord
from q36eval.records import Interval
from q36eval.reports import Document
from q36eval.reports.html_report import to_html
from tests.app.dashboard.written_history import write_history
from tests.app.judged_runs import items_of, judge_run
from tests.app.test_verdict_screen import STATES, printed
from tests.q36eval.reports.report_samples import accuracy

PYTHON = re.compile(
    r"\bNone\b|\bTrue\b|\bFalse\b|\bnan\b|\{'|\['|\(\)|<[A-Z]\w+\.|\b(Verdict|CriterionVerdict|ProbeName|Lane|StageState)\."
)
"""What a value looks like that nobody put into words."""

MOST_BYTES = 200_000


def texts(document: Document) -> dict[str, str]:
    """Each format but JSON, which is not for people to read; as they read it."""
    written = [name for name in FORMATS if name != "json" and (name != "card" or document.report.verdict == "PASS")]
    named = {name: FORMATS[name].text(document) for name in written}
    named["html"] = re.sub(r"<style>.*?</style>", "", named["html"], flags=re.DOTALL)
    named |= {f"console {details}": printed(document, 120, details=details) for details in (True, False)}
    return {name: html.unescape(text.replace("\\", "")) for name, text in named.items()}


def judged(folder: Path) -> History:
    history = History.open(folder / "judged.sqlite")
    today = date(2026, 5, 1)
    judge_run(history, 120, today, items=items_of(120))
    judge_run(history, 0, today, branch="unsigned", require_sign_off=True)
    soon = Waiver(owner="eva", reason="known", criterion="tools", expires=today + timedelta(days=9))
    history.add_waiver("sandbox", "waived", soon)
    judge_run(history, 120, today, branch="waived")
    return history


def recorded(document: Document) -> RunRecord:
    """Its run with all that a gate writes down of how it was measured: nested, and not all of it known."""
    assert document.run is not None
    nested = {
        "all": {"title": "prompts", "part": None, "whole": True},
        "tasks": ["mmlu", None],
        "share": math.nan,
    }
    return document.run.model_copy(update={"provenance": {"measured_on": nested, "commit": None, "exhaustive": False}})


RECOVERY = accuracy("mmlu", 30, 4).model_copy(
    update={
        "metric": "recovery",
        "value": 0.93,
        "effect": 0.93,
        "effect_interval": Interval(lower=0.9, upper=0.96, level=0.95, method="betting"),
    }
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Of two written histories, and of the gates whose records are kept."""
    folder = tmp_path_factory.mktemp("histories")
    write_history(folder / "written.sqlite")
    histories = [History.open(folder / "written.sqlite"), judged(folder)]
    runs = [(history, history.get_run(run.id)) for history in histories for run in history.summaries(limit=100)]
    written = [document_of(run, history) for history, run in runs if run.report is not None]
    kept = [replace(document, run=recorded(document)) for document in (state() for state in STATES.values())]
    kept[0] = replace(kept[0], measurements=[*max((one.measurements for one in written), key=len), RECOVERY])
    return [*written, *kept]


@pytest.mark.long
def test_nothing_of_python_shows_in_any_format(documents: list[Document]) -> None:
    assert len(documents) > 10
    for document in documents:
        for name, text in texts(document).items():
            shown = PYTHON.search(text)
            assert shown is None, (name, document.subject, text[max(0, shown.start() - 80) : shown.end() + 80])


LOADING = {"src", "srcset", "data", "poster", "xlink:href", "background"}


@pytest.mark.long
def test_a_page_is_one_small_file_that_loads_nothing_and_labels_every_figure(documents: list[Document]) -> None:
    most_figures = 0
    for document in documents:
        text = to_html(document)
        page = lxml.html.document_fromstring(text)
        loaded = [value for one in page.iter("*") for name, value in one.attrib.items() if name in LOADING]
        loaded += [one.get("href", one.tag) for one in page.iter("link", "image", "base")]
        svgs = [one.get("aria-label", "") if one.get("role") == "img" else "" for one in page.iter("svg")]
        figures = [one.text_content() for one in page.iter("figcaption")]
        assert len(text.encode()) < MOST_BYTES
        assert [address for address in loaded if not address.startswith("#")] == []
        assert list(page.iter("script", "iframe", "img", "link", "object", "embed", "video", "audio")) == []
        assert not re.search(r"@import|url\(", text)
        assert len(svgs) == len(figures)
        assert all(len(label) > 20 for label in (*svgs, *figures))
        most_figures = max(most_figures, len(figures))
    assert most_figures == 4


@pytest.mark.long
def test_the_first_three_deciding_answers_are_in_every_format_for_people(documents: list[Document]) -> None:
    answered = [document for document in documents if len(document.answers) == 3]
    assert answered
    for document in answered:
        for name, text in texts(document).items():
            if name in ("junit", "card"):
                continue
            for answer in document.answers:
                assert " ".join(answer.name.split())[:30] in " ".join(text.split()), (name, document.subject)
            if name in ("html", "markdown", "github"):
                assert document.answers[0].branch.split("\n")[0][:30] in text
