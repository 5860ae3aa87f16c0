"""The report as one JSON document."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from q36eval.gate.report import GateReport
from q36eval.records import Measurement
from q36eval.reports.evals_figures import EvalsFigures, figures_json, recovery_asked

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


def to_json(report: GateReport, run: "RunRecord | None" = None, measurements: Sequence[Measurement] = ()) -> str:
    """`{"evals": …, "report": …, "run": …}` with sorted keys: the same input gives the same bytes.

    `evals` holds recovery, flips and counts by group of tasks, and effective lengths; null where none was measured.

    ASCII only, so text of models can neither drive a terminal nor break an encoding; non-finite numbers are strings.
    """
    figures = EvalsFigures(measurements)
    document = {
        "evals": figures_json(figures, recovery_asked(report)) if figures.measured else None,
        "report": json.loads(report.model_dump_json()),
        "run": None if run is None else json.loads(run.model_dump_json(exclude={"report"})),
    }
    return json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n"
