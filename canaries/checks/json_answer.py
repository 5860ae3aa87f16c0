"""A bare JSON answer: strict syntax, then the schema, then the values."""

import re
from typing import Any

from pydantic import ConfigDict, Field

from canaries.checks._base import Check, Expected, Failure, Tools
from canaries.checks._json import StrictJSONError, differences, schema_failures, strict_json

_FENCE = re.compile(r"\A```[a-zA-Z]*\n(.*?)\n?```\Z", re.DOTALL)


class ExpectedJSON(Expected):
    """`object`: the right value. `schema`: the JSON Schema of the prompt, if there is one."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    object: dict[str, Any]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


def _json_answer(text: str, expected: ExpectedJSON, tools: Tools) -> list[Failure]:
    said, failures = text.strip(), []
    fenced = _FENCE.match(said)
    if fenced is not None:
        failures.append(Failure("json", "fenced", "answer", "the JSON stands in a code fence instead of bare"))
        said = fenced.group(1)
    try:
        value = strict_json(said)
    except StrictJSONError as error:
        return [*failures, Failure("json", error.code, error.place, str(error))]
    if expected.json_schema is not None:
        failures += schema_failures("json", value, expected.json_schema)
    return failures + list(differences("json", value, expected.object, "$"))


json_answer = Check("json", ExpectedJSON, _json_answer)
