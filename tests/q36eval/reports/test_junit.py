"""JUnit XML as a strict schema and an independent parser read it."""

from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from lxml import etree
from report_samples import clean_report, hostile_report, run_of

from q36eval.gate import GateReport, Stage, StageState
from q36eval.reports import Document, to_junit

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
        "gone: Gone": [Error],
        "hint: Hint": [Skipped],
        "facts: Accuracy (facts)": [Failure],
        "needles: Accuracy (needles)": [],
        "kl: KL divergence from the reference": [Failure],
        "lane structured": [Failure],
        "lane freeform": [Failure],
        "verdict": [Failure],
    }
    counted = (suite.tests, suite.failures, suite.errors, suite.skipped)
    assert counted == (10, 6, 1, 1)
    suite.update_statistics()
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == counted
    assert {prop.name: prop.value for prop in suite.properties()}["exit_code"] == "1"


def test_people_read_titles_beside_ids_in_messages_and_stages() -> None:
    stage = Stage(name="kl", state=StageState.MEASURED, items=9, planned=9, settled=("kl", "of another report"))
    judged = hostile_report()
    judged = judged.model_copy(update={"stages": (stage,), "decisive": ("kl", "facts")})
    (suite,) = JUnitXml.fromstring(to_junit(Document(judged)).encode())
    (message,) = (case.result[0].message for case in suite if case.name == "verdict")
    names = "KL divergence from the reference (kl), Accuracy (facts) (facts)"
    assert message.endswith(f": {names}")
    decided = "this decided the verdict, by KL divergence from the reference (kl), of another report"
    assert f"stage kl: 9 of 9 evaluated; {decided}" in to_junit(Document(judged))


def test_it_is_green_exactly_when_the_gate_passes() -> None:
    (suite,) = JUnitXml.fromstring(to_junit(Document(clean_report(), run_of("main"))).encode())
    assert [case.name for case in suite if case.result] == []
    assert suite.time == 90.5


def test_a_waived_failure_is_skipped_with_the_waiver() -> None:
    (suite,) = JUnitXml.fromstring(to_junit(Document(hostile_report(waive=True))).encode())
    (case,) = (case for case in suite if case.name == "bad: Bad")
    assert isinstance(case.result[0], Skipped)
    assert "waived by" in case.result[0].message
