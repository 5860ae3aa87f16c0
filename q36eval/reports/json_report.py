"""The report as one JSON document."""

import json
from typing import TYPE_CHECKING

from q36eval.gate.report import GateReport

if TYPE_CHECKING:
    from q36eval.history.records import RunRecord


def to_json(report: GateReport, run: "RunRecord | None" = None) -> str:
    """`{"report": …, "run": …}` with sorted keys: the same input gives the same bytes.

    ASCII only, so text of models can neither drive a terminal nor break an encoding; non-finite numbers are strings.
    """
    document = {
        "report": json.loads(report.model_dump_json()),
        "run": None if run is None else json.loads(run.model_dump_json(exclude={"report"})),
    }
    return json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n"
