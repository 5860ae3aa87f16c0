"""A JSON answer, bare or in prose: strict syntax, then the schema, then the values."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.canaries.checks.base import Check, Decision, Expected, Failure, Tools, place_of, shown
from q36eval.canaries.checks.grounding import false_sentences, thanks
from q36eval.canaries.checks.json_schema import check_schema, schema_failures
from q36eval.canaries.checks.json_values import (
    CLOSER,
    StrictJSONError,
    differences,
    json_decisions,
    read_json,
    strict_json,
)
from q36eval.canaries.checks.prose import Piece, code_blocks, sentences, trimmed

_FENCE = re.compile(r"```[a-zA-Z]*\n")
_BRACKET = re.compile(r"[{\[]")
_CLOSING = re.compile(r"\s*([}\]])")
_LIKE_JSON = re.compile(r"[{\[\s]{0,99}(?:\{\s{0,99}(?:[\"'}]|\w{1,64}\s{0,9}:)|\[\s{0,99}\")")
"""A bracket that begins JSON, well formed or not; other brackets in prose are punctuation."""

_MAX_SCANNED = 50_000_000
"""The maximum of characters read without success in the search for JSON: keeps it linear."""


class ExpectedJSON(Expected):
    """`object`: the right value, an object or an array. `schema`: the JSON Schema of the prompt, if any.
    `fence`: whether a code fence is allowed, if the prompt does not require bare JSON.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    object: dict[str, Any] | list[Any]
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    fence: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "ExpectedJSON":
        if self.json_schema is not None:
            check_schema(self.json_schema)
            wrong = schema_failures("json", self.object, self.json_schema)
            if wrong:
                raise ValueError(f"the right object breaks its own schema at {wrong[0].place}: {wrong[0].message}")
        return self


class Prose(BaseModel):
    """The prompt's requirements around the JSON.

    before, after: the number of sentences on either side; None for any number above zero. block: the JSON is alone in a
    fenced block of code. thanks: the text after it says thanks.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    before: Annotated[int, Field(ge=0)] | None = None
    after: Annotated[int, Field(ge=0)] | None = None
    block: bool = False
    thanks: bool = False


class ExpectedProse(ExpectedJSON):
    """`prose`: the text around the JSON; if omitted, any or none. `known`: the conversation's texts; required prose
    then may contain no number and no date outside them and the object, nor deny them.
    """

    prose: Prose | None = None
    known: list[str] | None = None


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
        if not expected.fence:
            yield Failure("json", "fenced", "answer", "the JSON stands in a code fence instead of bare")
        start, end = fence.end(), end - 3
    try:
        value = strict_json(text, start, end, exact=True)
    except StrictJSONError as error:
        yield Failure("json", error.code, error.place, str(error))
    else:
        yield from _value_failures("json", value, expected)


def _decide_json(text: str, expected: ExpectedJSON, tools: Tools) -> list[Decision]:
    fence = _FENCE.match(text, _start(text))
    return list(json_decisions(text, _start(text) if fence is None else fence.end(), expected.json_schema))


class _Embedded(NamedTuple):
    """A JSON object or array in prose, `text[start:end]`, or its syntax error."""

    start: int
    end: int
    value: Any
    problem: StrictJSONError | None


def _search(text: str) -> Iterator[_Embedded]:
    """Every outermost object or array; ends at the first that begins like JSON and is invalid."""
    position, in_vain = 0, 0
    unclosed = {"}": 0, "]": 0}
    while bracket := _BRACKET.search(text, position):
        start = bracket.start()
        try:
            value, position = read_json(text, start, exact=True)
        except StrictJSONError as error:
            if _LIKE_JSON.match(text, start):
                yield _Embedded(start, len(text), None, error)
                return
            # a failure costs its place, for lines are counted; how far it read is unknown where it nested too deeply
            in_vain += error.at if error.at > start else len(text)
            if in_vain > _MAX_SCANNED:
                yield _Embedded(start, len(text), None, error)
                return
            position = start + 1
            unclosed[CLOSER[text[start]]] += 1
        else:
            yield _Embedded(start, position, value, _one_too_many(text, position, unclosed))


def _one_too_many(text: str, end: int, unclosed: dict[str, int]) -> StrictJSONError | None:
    """The error if JSON is closed once more than it, or a bracket of the prose before it, was opened."""
    closer = _CLOSING.match(text, end)
    if closer is None or unclosed[closer.group(1)]:
        return None
    at = closer.start(1)
    return StrictJSONError("not_json", at, place_of(text, at), f"not JSON: {closer.group(1)} closes nothing")


def _json_in_prose(text: str, expected: ExpectedProse, tools: Tools) -> Iterator[Failure]:
    check = "json_in_prose"
    values = list(_search(text))
    if not values:
        yield Failure(check, "no_json", "answer", "there is no JSON object or array")
    for bad in values:
        if bad.problem is not None:
            yield Failure(check, bad.problem.code, bad.problem.place, str(bad.problem))
    if len(values) > 1:
        message = "a second JSON object or array, where exactly one is wanted"
        yield Failure(check, "several_json", place_of(text, values[1].start), message)
    elif values and values[0].problem is None:
        yield from _value_failures(check, values[0].value, expected)
        if expected.prose is not None:
            yield from _prose_failures(text, values[0], expected, expected.prose)


def _prose_failures(text: str, embedded: _Embedded, expected: ExpectedProse, prose: Prose) -> Iterator[Failure]:
    check = "json_in_prose"
    block = _block_around(text, embedded)
    if block is None and (prose.block or "```" in text or "~~~" in text):
        message = "the JSON does not stand alone in a block of code that is closed"
        yield Failure(check, "no_block", place_of(text, embedded.start), message)
    outer = block or Piece(embedded.start, embedded.end)
    before, after = text[: outer.start], text[outer.end :]
    for place, said, wanted in (("before", before, prose.before), ("after", after, prose.after)):
        count = len(sentences(said))
        if count != wanted if wanted is not None else not count:
            message = f"{count} sentences {place} the JSON instead of {'some' if wanted is None else wanted}"
            yield Failure(check, "wrong_sentences", place, message)
    if prose.thanks and not thanks(after):
        yield Failure(check, "no_thanks", place_of(text, outer.end), "nobody is thanked after the JSON")
    if expected.known is not None:
        known = [*expected.known, text[embedded.start : embedded.end]]
        for piece in (Piece(0, outer.start), Piece(outer.end, len(text))):
            yield from false_sentences(check, text, piece, known, expected.known)


def _block_around(text: str, embedded: _Embedded) -> Piece | None:
    """The fenced block that holds only the JSON."""
    value = Piece(embedded.start, embedded.end)
    blocks = (block for block in code_blocks(text) if block is not None)
    return next((block.outer for block in blocks if trimmed(text, *block.inner) == value), None)


def _decide_json_in_prose(text: str, expected: ExpectedProse, tools: Tools) -> list[Decision]:
    return list(json_decisions(text, next(_search(text)).start, expected.json_schema))


TEXT_BEFORE, TEXT_AFTER = "text_before", "text_after"
"""Codes for unrequested text around a judged object."""

MAX_BEFORE = 300
"""The maximum of characters before the object; a later object is not found."""


def _outer(text: str) -> tuple[int, int, bool]:
    """The start of the object or list, the start of its surrounding, and whether that is a fence."""
    bracket = _BRACKET.search(text, 0, MAX_BEFORE)
    start = _start(text) if bracket is None else bracket.start()
    before = text[:start].rstrip()
    fence = re.search(r"```[a-zA-Z]*\Z", before)
    return (start, start, False) if fence is None else (start, fence.start(), True)


def _json_object(text: str, expected: ExpectedJSON, tools: Tools) -> Iterator[Failure]:
    start, outer, fenced = _outer(text)
    check = "json_object"
    if text[:outer].strip():
        message = f"{shown(text[:outer].strip())} stands before the JSON"
        yield Failure(check, TEXT_BEFORE, "line 1", message)
    try:
        value, end = read_json(text, start, exact=True)
    except StrictJSONError as error:
        yield Failure(check, error.code, error.place, str(error))
        return
    if fenced and not expected.fence:
        yield Failure(check, "fenced", "answer", "the JSON stands in a code fence instead of bare")
    yield from _value_failures(check, value, expected)
    rest = text[end:].strip()
    rest = rest.removeprefix("```").strip() if fenced else rest
    if rest:
        yield Failure(check, TEXT_AFTER, place_of(text, text.rfind(rest)), f"{shown(rest)} follows the JSON")


def _decide_json_object(text: str, expected: ExpectedJSON, tools: Tools) -> list[Decision]:
    return list(json_decisions(text, _outer(text)[0], expected.json_schema))


json_answer = Check("json", ExpectedJSON, _json_answer, _decide_json)
json_object = Check("json_object", ExpectedJSON, _json_object, _decide_json_object)
"""As `json`, but text around the JSON has separate codes, and the JSON is still judged."""

json_in_prose = Check("json_in_prose", ExpectedProse, _json_in_prose, _decide_json_in_prose)
