"""Strict JSON and comparison by type, shared by the JSON and the tool-call checks."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from canaries.checks._base import Failure, shown


class StrictJSONError(ValueError):
    """The text is not JSON, or is JSON only to a lenient reader. `code` says which way."""

    def __init__(self, code: str, place: str, message: str) -> None:
        super().__init__(message)
        self.code, self.place = code, place


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise StrictJSONError("duplicate_key", f"key {shown(key)}", f"the key {shown(key)} comes twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise StrictJSONError("not_json", "answer", f"{name} is not JSON")


def strict_json(text: str) -> Any:
    """Parse RFC 8259 JSON: no duplicate keys, no NaN or infinities, nothing before or after.

    Raises:
        StrictJSONError: anything else, numbers beyond Python's limits and absurd nesting included.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except StrictJSONError:
        raise
    except json.JSONDecodeError as error:
        raise StrictJSONError("not_json", f"character {error.pos + 1}", f"not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise StrictJSONError("not_json", "answer", f"not JSON: {shown(str(error))}") from error


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema))


def schema_failures(check: str, value: Any, schema: dict[str, Any]) -> list[Failure]:
    """What the schema says against `value`, by JSON path."""
    validator = _validator(json.dumps(schema, sort_keys=True))
    try:
        errors = sorted(validator.iter_errors(value), key=lambda error: (error.json_path, error.message))
    except (RecursionError, OverflowError) as error:
        return [Failure(check, "schema", "answer", f"cannot be validated: {type(error).__name__}")]
    return [Failure(check, "schema", error.json_path, shown(error.message)) for error in errors]


def differences(check: str, said: Any, wanted: Any, place: str) -> Iterator[Failure]:
    """Where `said` differs from `wanted`, types included: `true` is not 1 and 1.0 is not 1."""
    if type(said) is not type(wanted):
        message = f"{shown(said)} is {_json_type(said)}, not {_json_type(wanted)}"
        yield Failure(check, "wrong_type", place, message)
    elif isinstance(wanted, dict):
        for key in [*wanted, *(key for key in said if key not in wanted)]:
            inner = f"{place}.{key}" if key.isidentifier() else f"{place}[{shown(key)}]"
            if key not in said:
                yield Failure(check, "missing_key", inner, "is missing")
            elif key not in wanted:
                yield Failure(check, "unexpected_key", inner, f"was not asked for: {shown(said[key])}")
            else:
                yield from differences(check, said[key], wanted[key], inner)
    elif isinstance(wanted, list):
        if len(said) != len(wanted):
            yield Failure(check, "wrong_length", place, f"{len(said)} elements instead of {len(wanted)}")
        for index, (a, b) in enumerate(zip(said, wanted, strict=False)):
            yield from differences(check, a, b, f"{place}[{index}]")
    elif said != wanted:
        yield Failure(check, "wrong_value", place, f"is {shown(said)}, not {shown(wanted)}")


_JSON_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "null")
