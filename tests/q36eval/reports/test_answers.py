"""What the reference can do stands in every report: families left out, by name and count, and why answers fail."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from q36eval.gate import GateReport, decide
from q36eval.records import FailureCauses, FamilyCompetence
from q36eval.reports import Document, to_json, to_junit, to_markdown
from q36eval.reports.card_report import to_card
from q36eval.reports.console_report import to_console
from q36eval.reports.html_report import to_html
from tests.q36eval.gate.evidence import only
from tests.q36eval.reports.report_samples import accuracy, run_of

HARD = FamilyCompetence(name="json-nested", items=100, informative=3, causes={"cut_off": 90, "wrong": 7})
EASY = FamilyCompetence(name="json-flat", items=400, informative=396, causes={"wrong": 4})
CAUSES = FailureCauses(branch={"cut_off": 91, "wrong": 12}, reference={"cut_off": 90, "wrong": 11})


def judged(*families: FamilyCompetence) -> GateReport:
    found = accuracy("facts", 8, 4)
    assert found.clusters is not None
    names = tuple(families[0].name if row < 400 else families[-1].name for row in range(len(found.clusters.units)))
    clusters = found.clusters.model_copy(update={"families": names})
    found = found.model_copy(update={"competence": families, "causes": CAUSES, "clusters": clusters})
    return decide(only("min_recovery", 0.9, probe="evals", metric="accuracy", slice="facts"), [found])


def in_a_terminal(document: Document) -> str:
    stream = io.StringIO()
    Console(file=stream, width=400).print(to_console(document))
    return stream.getvalue()


Format = Callable[[Document], str]


@pytest.mark.parametrize(
    "written",
    [to_markdown, to_html, to_junit, to_card, in_a_terminal],
    ids=["markdown", "html", "junit", "card", "console"],
)
def test_every_format_names_what_was_left_out_and_why_answers_fail(written: Format) -> None:
    report = judged(EASY, HARD)
    text = " ".join(written(Document(report, run_of())).replace("&#45;", "-").split())
    for told in ("the reference solves 399 of 500 items", "3 of 100 in json-nested", "90 cut off at their budget"):
        assert told in text
    assert "branch 91 cut off at their budget, 12 wrong; reference 90 cut off at their budget, 11 wrong" in text
    assert report.verdict == "PASS"


def test_programs_read_the_same() -> None:
    report = judged(EASY, HARD)
    (criterion,) = json.loads(to_json(Document(report, run_of())))["report"]["criteria"]
    assert criterion["competence"]["left_out"] == [HARD.model_dump(mode="json")]
    assert criterion["causes"]["branch"] == {"cut_off": 91, "wrong": 12}
