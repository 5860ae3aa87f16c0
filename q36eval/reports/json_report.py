"""The JSON report: a stable interface for programs, published as a versioned JSON Schema.

The version grows when a field is removed or changes its meaning; a new field alone does not raise it. Every field is
always present, except those of a criterion that only some have (`title`, `held`, `anomalous`, a margin's `schemes`,
`beyond`, `beyond_margins` and `of`). Floats that JSON cannot represent are the texts NaN, Infinity and -Infinity.
"""

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from q36eval.files import canonical_json, printable_json
from q36eval.gate.fault_layer import LayerAtFault
from q36eval.gate.report import Circumstances, GateReport
from q36eval.provenance import OPTIONS
from q36eval.records import DeploymentIdentity, Record, Verdict
from q36eval.reports.document import Document
from q36eval.reports.evals_figures import EvalsSection, evals_section, recovery_asked

SCHEMA_ID: Literal["urn:q36eval:report:2"] = "urn:q36eval:report:2"
"""Names the published schema; the number is that of `GateReport.schema_version`."""


class RunSection(Record):
    """The run that was judged: what of, when, with what. Times are UTC, `timings` are seconds."""

    id: str
    family: str
    branch: str
    identity: DeploymentIdentity | None
    reference_identity: DeploymentIdentity | None
    policy: dict[str, Any] | None
    suites: dict[str, str]
    provenance: dict[str, Any]
    state: Literal["running", "finished", "interrupted"]
    started: datetime
    finished: datetime | None
    verdict: Verdict | None
    circumstances: Circumstances | None
    timings: dict[str, float]


class ReportDocument(Record):
    """One gate run's report. `schema` names the version of this document, `evals` is None where none was measured.

    `layer` says of what did not pass whether the checkpoint or the engine is at fault; None where that is not asked.
    """

    schema_id: Literal["urn:q36eval:report:2"] = Field(default=SCHEMA_ID, alias="schema")
    report: GateReport
    run: RunSection | None
    evals: EvalsSection | None
    layer: LayerAtFault | None


class _Published(GenerateJsonSchema):
    """A schema of what is written: every field is there that no rule leaves out, and floats may be the texts of what is
    no number."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return {"anyOf": [super().float_schema(schema), {"enum": ["NaN", "Infinity", "-Infinity"]}]}

    def field_title_should_be_set(self, _schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])  # a field that is always present has no default

    def field_is_required(self, field: Any, *_total: Any, **_more: Any) -> bool:
        return field.get("serialization_exclude_if") is None


def report_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the JSON report."""
    schema = ReportDocument.model_json_schema(by_alias=True, mode="serialization", schema_generator=_Published)
    return {"$schema": GenerateJsonSchema.schema_dialect, "$id": SCHEMA_ID, **schema}


def to_json(document: Document) -> str:
    """`{"evals": …, "layer": …, "report": …, "run": …, "schema": …}`, keys sorted: the same input gives the same bytes.

    `evals` holds recovery, flips and counts by group of tasks, and effective lengths; null where none was measured.
    `json_schema` says what to rely on.

    ASCII only, so text of models can neither drive a terminal nor break an encoding; non-finite numbers are strings.
    """
    run, figures = document.run, document.evals
    written = ReportDocument(
        report=document.report,
        run=None
        if run is None
        else RunSection.model_validate_json(
            run.model_dump_json(exclude={"report": True, "imported": True, "provenance": {OPTIONS}})
        ),
        evals=evals_section(figures, recovery_asked(document.report)) if figures.measured else None,
        layer=document.layer,
    )
    return printable_json(json.loads(written.model_dump_json(by_alias=True)), indent=2)


def json_schema() -> str:
    """The JSON Schema of `to_json` as it is published: one definition a line."""
    schema = report_schema()
    definitions = schema.pop("$defs")
    lines = ",\n".join(f"  {json.dumps(name)}: {canonical_json(definitions[name])}" for name in sorted(definitions))
    return canonical_json(schema)[:-1] + ', "$defs": {\n' + lines + "\n}}\n"
