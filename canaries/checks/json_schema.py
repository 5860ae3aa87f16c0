"""JSON Schema (draft 2020-12): refuses invalid schemas, and validates a model's answer within limits."""

import json
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.exceptions import SchemaError
from jsonschema.validators import extend
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from q36eval.canaries.checks.base import MAX_FAILURES, Failure, shown
from q36eval.canaries.checks.json_values import plain
from q36eval.canaries.checks.patterns import compiled, search
from q36eval.files import canonical_json

MAX_VALUES = 1_000
"""An answer with more values is not validated: no right answer is that large, and validation is slow, above all for
`uniqueItems`, which compares every pair."""


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`pattern` with a time limit."""
    if not isinstance(instance, str):
        return
    if not search(pattern, instance):
        yield ValidationError(f"{shown(instance)} does not match {shown(pattern)}")


_extend: Any = extend  # jsonschema's own function has no types
_Validator = _extend(Draft202012Validator, {"pattern": _pattern})


@lru_cache(maxsize=4096)
def _checked(schema: str) -> Any:
    """A validator for a schema given as canonical JSON.

    Raises:
        ValueError: it is not a schema; the message gives the position.
    """
    written = json.loads(schema)
    try:
        # no formats: its "regex" knows Python's dialect only, and patterns are compiled below
        Draft202012Validator.check_schema(written, format_checker=FormatChecker(formats=()))
    except SchemaError as error:
        raise ValueError(f"the schema is not a JSON Schema: {error.json_path}: {shown(error.message)}") from error
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
    references = {"#", *(f"#/$defs/{name}" for name in written.get("$defs", ()))}
    for part in _subschemas(written):
        _check_keywords(part, references, outermost=part is written)
    return _Validator(written, registry=Registry())  # an empty registry: nothing is ever fetched


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):  # true and false are schemas too
        yield schema
        for part in DRAFT202012.subresources_of(schema):
            yield from _subschemas(part)


def _check_keywords(schema: dict[str, Any], references: Collection[str], *, outermost: bool) -> None:
    """Errors that the metaschema accepts although the schema is unusable.

    A reference must lead to a part of the schema that is checked, never elsewhere or to another keyword.
    """
    if "patternProperties" in schema:
        raise ValueError("the schema's patternProperties cannot be time-limited; name the properties")
    if "pattern" in schema:
        compiled(schema["pattern"], "the schema's pattern")
    if "$id" in schema and not outermost:
        raise ValueError(f"the schema's $id {shown(schema['$id'])} would change what references mean; remove it")
    for key in ("$ref", "$dynamicRef"):
        if key in schema and schema[key] not in references:
            raise ValueError(f"the schema's {key} {shown(schema[key])} must be # or name one of its own $defs")


def check_schema(schema: Any) -> None:
    """Refuse an invalid JSON Schema of draft 2020-12, or one that no check can use.

    Raises:
        ValueError: the message gives the position in the schema and the reason.
    """
    if not isinstance(schema, dict):
        raise ValueError(f"the schema must be a mapping, not {shown(schema)}")
    _checked(canonical_json(schema))


def check_json_value(value: Any, place: str) -> None:
    """Refuse YAML values that JSON cannot represent: dates, keys that are not strings, NaN and infinities.

    Raises:
        ValueError: the sentence begins with `place`.
    """
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{place} has the key {shown(key)}, which JSON would write in quotes: quote it")
            check_json_value(inner, f"{place}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            check_json_value(inner, f"{place}[{index}]")
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        raise ValueError(f"{place} is {value}, which JSON does not have")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{place} is a YAML {type(value).__name__} ({value}), which JSON does not have: quote it")


def schema_failures(check: str, value: Any, schema: dict[str, Any], base: str = "$") -> list[Failure]:
    """The violations of a schema by `value`, by JSON path from `base`; only the first ones if there are many.

    Raises:
        NotJudgedError: a pattern of the schema timed out.
    """
    if _count(value) > MAX_VALUES:
        return [Failure(check, "schema", base, f"more than {MAX_VALUES} values: not validated")]
    validator = _checked(canonical_json(schema))
    try:
        errors = list(islice(validator.iter_errors(plain(value)), MAX_FAILURES))
    except (RecursionError, OverflowError) as error:
        return [Failure(check, "schema", base, f"cannot be validated: {type(error).__name__}")]
    messages = sorted((base + error.json_path[1:], shown(error.message)) for error in errors)
    return [Failure(check, "schema", place[:200], message) for place, message in messages]


def _count(value: Any) -> int:
    """The number of values in `value`, itself included, counted up to `MAX_VALUES`."""
    waiting, count = [value], 0
    while waiting and count <= MAX_VALUES:
        inner = waiting.pop()
        count += 1
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
    return count
