"""The report as one JSON document."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from q36eval.files import canonical_json, printable_json
from q36eval.gate.report import GateReport
from q36eval.records import Measurement
from q36eval.reports.document import EvalsSection, ReportDocument, RunSection, report_schema
from q36eval.reports.evals_figures import EvalsFigures, figures_json, recovery_asked

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


def to_json(report: GateReport, run: "RunRecord | None" = None, measurements: Sequence[Measurement] = ()) -> str:
    """`{"evals": …, "report": …, "run": …, "schema": …}` with sorted keys: the same input gives the same bytes.

    `evals` holds recovery, flips and counts by group of tasks, and effective lengths; null where none was measured.
    `json_schema` says what to rely on.

    ASCII only, so text of models can neither drive a terminal nor break an encoding; non-finite numbers are strings.
    """
    document = ReportDocument(report=report, run=_run_section(run), evals=_evals_section(report, measurements))
    body = json.loads(document.model_dump_json(by_alias=True))
    return printable_json(body, indent=2)


def json_schema() -> str:
    """The JSON Schema of `to_json` as it is published: one definition a line."""
    schema = report_schema()
    definitions = schema.pop("$defs")
    lines = ",\n".join(f"  {json.dumps(name)}: {canonical_json(definitions[name])}" for name in sorted(definitions))
    return canonical_json(schema)[:-1] + ', "$defs": {\n' + lines + "\n}}\n"


def _run_section(run: "RunRecord | None") -> RunSection | None:
    return None if run is None else RunSection.model_validate_json(run.model_dump_json(exclude={"report"}))


def _evals_section(report: GateReport, measurements: Sequence[Measurement]) -> EvalsSection | None:
    figures = EvalsFigures(measurements)
    if not figures.measured:
        return None
    return EvalsSection.model_validate(figures_json(figures, recovery_asked(report)))
