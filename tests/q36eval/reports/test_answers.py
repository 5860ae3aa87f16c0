"""What the reference can do stands in every report: families left out, by name and count, and why answers fail."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from q36eval.gate import Criterion, GateReport, Margin, Policy, decide
from q36eval.records import FailureCauses, FamilyCompetence, Lane, Measurement
from q36eval.reports import Document, to_json, to_junit, to_markdown
from q36eval.reports.card_report import to_card
from q36eval.reports.console_report import to_console
from q36eval.reports.html_report import to_html
from q36eval.reports.next_step import next_steps
from q36eval.reports.story import unable_words
from tests.q36eval.reports.report_samples import accuracy, run_of

HARD = FamilyCompetence(name="json-nested", items=100, informative=3, causes={"cut_off": 90, "wrong": 7})
EASY = FamilyCompetence(name="json-flat", items=400, informative=396, causes={"wrong": 4})
CAUSES = FailureCauses(branch={"cut_off": 91, "wrong": 12}, reference={"cut_off": 90, "wrong": 11})


def judged(*families: FamilyCompetence) -> tuple[GateReport, Measurement]:
    found = accuracy("facts", 8, 4)
    assert found.clusters is not None
    names = tuple(families[0].name if row < 400 else families[-1].name for row in range(len(found.clusters.units)))
    clusters = found.clusters.model_copy(update={"families": names})
    found = found.model_copy(update={"competence": families, "causes": CAUSES, "clusters": clusters})
    recovery = Margin(kind="min_recovery", value=0.9, source="test")
    rule = Criterion(id="it", probe="evals", metric="accuracy", slice="facts", margin=recovery, lanes=(Lane.FREEFORM,))
    return decide(Policy(name="p", criteria=(rule,)), [found]), found


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
    report, _ = judged(EASY, HARD)
    text = " ".join(written(Document(report, run_of())).replace("&#45;", "-").split())
    for told in ("the reference solves 399 of 500 items", "3 of 100 in json-nested", "90 cut off at their budget"):
        assert told in text
    assert "branch 91 cut off at their budget, 12 wrong; reference 90 cut off at their budget, 11 wrong" in text
    assert report.verdict == "PASS"


def test_what_cannot_be_judged_says_so_in_one_sentence() -> None:
    report, found = judged(HARD)
    (result,) = report.criteria
    assert (result.verdict, report.exit_code) == ("NOT_MEASURED", 3)
    assert result.reason == "the probe does not report for every item whether the reference solves it"
    report, found = judged(HARD.model_copy(update={"items": 500, "informative": 3, "causes": {"cut_off": 497}}))
    assert report.criteria[0].reason == (
        "the reference solves 3 of 500 in json-nested (497 cut off at their budget); 0 of 500 items lie in families "
        "that the reference can do, and the policy requires 80 %"
    )
    (step,) = next_steps(report, run_of("main"))
    assert (step.command, "why the reference fails the items of" in step.why) == ("q36eval ui", True)
    told = unable_words([found])
    assert told == ["No evidence: the reference solves 3 of 500 in json-nested (497 cut off at their budget)."]


def test_programs_read_the_same() -> None:
    report, _ = judged(EASY, HARD)
    (criterion,) = json.loads(to_json(Document(report, run_of())))["report"]["criteria"]
    assert criterion["competence"]["left_out"] == [HARD.model_dump(mode="json")]
    assert criterion["causes"]["branch"] == {"cut_off": 91, "wrong": 12}
