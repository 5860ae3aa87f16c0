"""The published schema is the code's, and real reports hold to it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from q36eval.gate import GateReport
from q36eval.history.records import RunRecord
from q36eval.reports import Document, json_schema, to_json
from q36eval.reports.json_report import RunSection
from tests.q36eval.reports.report_samples import clean_report, hostile_report, measured, run_of, with_distances

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
