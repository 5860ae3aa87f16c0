"""A JSON answer, bare or in prose: strict syntax, then the schema, then the values."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import ConfigDict, Field, model_validator

from canaries.checks._base import Check, Decision, Expected, Failure, NotJudgedError, Tools, place_of
from canaries.checks._json import StrictJSONError, differences, read_json, strict_json
from canaries.checks._json_decisions import json_decisions
from canaries.checks._schema import check_json_value, check_schema, schema_failures

_FENCE = re.compile(r"```[a-zA-Z]*\n")
_BRACKET = re.compile(r"[{\[]")
_CLOSING = re.compile(r"\s*([}\]])")
_LIKE_JSON = re.compile(r"[{\[\s]{0,99}(?:\{\s{0,99}(?:[\"'}]|\w{1,64}\s{0,9}:)|\[\s{0,99}\")")
"""A bracket that begins JSON, well formed or not; other brackets in prose are brackets."""

_CLOSER = {"{": "}", "[": "]"}
_MAX_SCANNED = 50_000_000
"""Characters read in vain before the search for JSON gives up: keeps it linear."""


class ExpectedJSON(Expected):
    """`object`: the right value, an object or an array. `schema`: the JSON Schema of the prompt, if there is one."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    object: dict[str, Any] | list[Any]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _consistent(self) -> "ExpectedJSON":
        check_json_value(self.object, "object")
        if self.json_schema is not None:
            check_schema(self.json_schema)
            try:
                wrong = schema_failures("json", self.object, self.json_schema)
            except NotJudgedError as error:
                raise ValueError(str(error)) from error
            if wrong:
                raise ValueError(f"the right object breaks its own schema at {wrong[0].place}: {wrong[0].message}")
        return self


def _value_failures(check: str, value: Any, expected: ExpectedJSON) -> Iterator[Failure]:
    if expected.json_schema is not None:
        yield from schema_failures(check, value, expected.json_schema)
    yield from differences(check, value, expected.object, "$")


def _start(text: str) -> int:
    return len(text) - len(text.lstrip())


def _json_answer(text: str, expected: ExpectedJSON, tools: Tools) -> Iterator[Failure]:
    start, end = _start(text), len(text.rstrip())
    fence = _FENCE.match(text, start)
    if fence is not None and text.endswith("```", fence.end(), end):
        yield Failure("json", "fenced", "answer", "the JSON stands in a code fence instead of bare")
        start, end = fence.end(), end - 3
    try:
        value = strict_json(text, start, end)
    except StrictJSONError as error:
        yield Failure("json", error.code, error.place, str(error))
    else:
        yield from _value_failures("json", value, expected)


def _decide_json(text: str, expected: ExpectedJSON, tools: Tools) -> list[Decision]:
    return json_decisions(text, _start(text), expected.json_schema)


class _Found(NamedTuple):
    """A JSON object or array in prose, or what is wrong with one."""

    start: int
    value: Any
    problem: StrictJSONError | None


def _search(text: str) -> Iterator[_Found]:
    """Every outermost object or array; ends at the first that begins like JSON and is none."""
    position, in_vain = 0, 0
    unclosed = {"}": 0, "]": 0}
    while bracket := _BRACKET.search(text, position):
        start = bracket.start()
        try:
            value, position = read_json(text, start)
        except StrictJSONError as error:
            if _LIKE_JSON.match(text, start):
                yield _Found(start, None, error)
                return
            # a failure costs its place, for lines are counted; how far it read is unknown where it nested too deeply
            in_vain += error.at if error.at > start else len(text)
            if in_vain > _MAX_SCANNED:
                yield _Found(start, None, error)
                return
            position = start + 1
            unclosed[_CLOSER[text[start]]] += 1
        else:
            yield _Found(start, value, _one_too_many(text, position, unclosed))


def _one_too_many(text: str, end: int, unclosed: dict[str, int]) -> StrictJSONError | None:
    """What is wrong where JSON is closed once more than it, or a bracket of the prose before it, was opened."""
    closer = _CLOSING.match(text, end)
    if closer is None or unclosed[closer.group(1)]:
        return None
    at = closer.start(1)
    return StrictJSONError("not_json", at, place_of(text, at), f"not JSON: {closer.group(1)} closes nothing")


def _json_in_prose(text: str, expected: ExpectedJSON, tools: Tools) -> Iterator[Failure]:
    check = "json_in_prose"
    found = list(_search(text))
    if not found:
        yield Failure(check, "no_json", "answer", "there is no JSON object or array")
    for bad in found:
        if bad.problem is not None:
            yield Failure(check, bad.problem.code, bad.problem.place, str(bad.problem))
    if len(found) > 1:
        message = "a second JSON object or array, where exactly one is wanted"
        yield Failure(check, "several_json", place_of(text, found[1].start), message)
    elif found and found[0].problem is None:
        yield from _value_failures(check, found[0].value, expected)


def _decide_json_in_prose(text: str, expected: ExpectedJSON, tools: Tools) -> list[Decision]:
    return json_decisions(text, next(_search(text)).start, expected.json_schema)


json_answer = Check("json", ExpectedJSON, _json_answer, _decide_json)
json_in_prose = Check("json_in_prose", ExpectedJSON, _json_in_prose, _decide_json_in_prose)
