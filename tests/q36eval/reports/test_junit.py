"""JUnit XML as a strict schema and an independent parser read it."""

from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from lxml import etree

from q36eval.gate import GateReport
from q36eval.reports import Document, to_junit
from tests.q36eval.reports.report_samples import clean_report, hostile_report, run_of

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


def test_it_is_green_exactly_when_the_gate_passes_and_a_waived_failure_is_skipped_with_the_waiver() -> None:
    (suite,) = JUnitXml.fromstring(to_junit(Document(clean_report(), run_of("main"))).encode())
    assert [case.name for case in suite if case.result] == []
    assert suite.time == 90.5
    (suite,) = JUnitXml.fromstring(to_junit(Document(hostile_report(waive=True))).encode())
    (case,) = (case for case in suite if case.name == "bad: Bad")
    assert isinstance(case.result[0], Skipped)
    assert "waived by" in case.result[0].message
