"""JSON values, shared by the JSON and the tool-call checks: tokens, strict parsing, comparison by type, decisions."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from q36eval.canaries.checks.base import Decision, Failure, place_of, said_instead, shown, text_code

CLOSER = {"{": "}", "[": "]"}
_TOKEN = re.compile(r'[ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s"{}\[\]:,]+)', re.DOTALL)

Path = list[str | int]
"""Keys as written (with quotes and escapes) and indexes, from the outermost."""


class Token(NamedTuple):
    """Characters `text[start:end]`. `path` is the position of a value or key; it changes during reading."""

    kind: Literal["open", "key", "value", "comma", "close"]
    start: int
    end: int
    path: Path


def tokens(text: str, start: int = 0) -> Iterator[Token]:
    """The tokens of the JSON value that begins at `text[start]`, without colons.

    Invalid JSON ends early or yields meaningless tokens; nothing is raised.
    """
    path: Path = []
    opened: list[str] = []
    key_next = False
    while match := _TOKEN.match(text, start):
        at, start = match.span(1)
        first = text[at]
        if first in CLOSER:
            yield Token("open", at, start, path)
            opened.append(first)
            key_next = first == "{"
            path.append(0)
        elif first in "}]":
            if not opened:
                return
            opened.pop()
            path.pop()
            yield Token("close", at, start, path)
            key_next = False
        elif first == "," and opened:
            yield Token("comma", at, start, path)
            key_next = opened[-1] == "{"
            if isinstance(path[-1], int):
                path[-1] += 1
        elif key_next:
            path[-1] = text[at:start]
            yield Token("key", at, start, path)
            key_next = False
        elif first != ":":
            yield Token("value", at, start, path)
        if not opened:
            return


def step(key: str) -> str:
    """One step of a JSON path into an object."""
    return f".{key}" if len(key) <= 40 and key.isidentifier() else f"[{shown(key)}]"


def path_text(path: Path) -> str:
    """`$.items[2].name`; only its last steps if it is long."""
    last = path[-20:]
    steps = (f"[{part}]" if isinstance(part, int) else step(part[1:-1]) for part in last)
    return ("$" if len(path) == len(last) else "$…") + "".join(steps)


_WHITE_SPACE = " \t\n\r"


class StrictJSONError(ValueError):
    """The text is not JSON, or is JSON only to a lenient reader. `code` is the kind of error, `at` the character."""

    def __init__(self, code: str, at: int, place: str, message: str) -> None:
        super().__init__(message)
        self.code, self.at, self.place = code, at, place


class _DuplicateKeyError(ValueError):
    pass


class _ConstantError(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise _DuplicateKeyError
    return mapping


def _no_constant(name: str) -> Any:
    raise _ConstantError(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)
_EXACT_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=Decimal)


def strict_json(text: str, start: int = 0, end: int | None = None, *, exact: bool = False) -> Any:
    """Parse `text[start:end]` as RFC 8259 JSON: no duplicate keys, no NaN, nothing around it but white space.

    Numbers with a fraction or an exponent become `Decimal` where they are to be `exact`, else `float`.

    Raises:
        StrictJSONError: anything else, numbers beyond Python's limits and absurd nesting included.
    """
    within = text[:end]
    start += len(within[start:]) - len(within[start:].lstrip(_WHITE_SPACE))
    value, after = read_json(within, start, exact=exact)
    rest = within[after:].lstrip(_WHITE_SPACE)
    if rest:
        at = len(within) - len(rest)
        raise StrictJSONError("not_json", at, place_of(text, at), f"not JSON: {shown(rest)} follows the value")
    return value


def read_json(text: str, start: int, *, exact: bool = False) -> tuple[Any, int]:
    """The JSON value that begins at `text[start]`, and the character after it. `exact` is that of `strict_json`.

    Raises:
        StrictJSONError: no value of strict JSON begins there.
    """
    try:
        return (_EXACT_DECODER if exact else _DECODER).raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise StrictJSONError("not_json", error.pos, place_of(text, error.pos), f"not JSON: {error.msg}") from error
    except _DuplicateKeyError as error:
        raise _duplicate_key(text, start) from error
    except _ConstantError as error:
        at = next((at for kind, at, end, _ in tokens(text, start) if text[at:end] == str(error)), start)
        raise StrictJSONError("not_json", at, place_of(text, at), f"not JSON: {error}") from error
    except RecursionError as error:
        message = "not JSON that can be read: nested too deeply"
        raise StrictJSONError("not_json", start, place_of(text, start), message) from error
    except (ValueError, ArithmeticError) as error:  # more digits, or a larger exponent, than can be held
        raise StrictJSONError("not_json", start, place_of(text, start), f"not JSON: {shown(str(error))}") from error


def _duplicate_key(text: str, start: int) -> StrictJSONError:
    seen: list[set[str]] = []
    for kind, at, end, path in tokens(text, start):
        if text[at] in CLOSER:
            seen.append(set())
        elif kind == "close":
            seen.pop()
        elif kind == "key":
            key = json.loads(text[at:end])
            if key in seen[-1]:
                message = f"the key {shown(key)} comes twice in one object"
                return StrictJSONError("duplicate_key", at, path_text(path), message)
            seen[-1].add(key)
    return StrictJSONError("duplicate_key", start, place_of(text, start), "a key comes twice in one object")


def differences(check: str, said: Any, wanted: Any, place: str) -> Iterator[Failure]:
    """The differences of `said` from `wanted`, with types, and numbers by value: 1.0 and 1e0 are 1, `true` is not."""
    if type(said) is not type(wanted) and not (is_number(said) and is_number(wanted)):
        message = f"{_shown(said)} is {_json_type(said)}, not {_json_type(wanted)}"
        yield Failure(check, "wrong_type", place, message)
    elif isinstance(wanted, dict):
        for key in [*wanted, *(key for key in said if key not in wanted)]:
            inner = place + step(key)
            if key not in said:
                yield Failure(check, "missing_key", inner, "is missing")
            elif key not in wanted:
                yield Failure(check, "unexpected_key", inner, f"was not asked for: {_shown(said[key])}")
            else:
                yield from differences(check, said[key], wanted[key], inner)
    elif isinstance(wanted, list):
        if len(said) != len(wanted):
            yield Failure(check, "wrong_length", place, f"{len(said)} elements instead of {len(wanted)}")
        for index, (a, b) in enumerate(zip(said, wanted, strict=False)):
            yield from differences(check, a, b, f"{place}[{index}]")
    elif isinstance(wanted, str) and said != wanted:
        code = text_code(said, wanted, "wrong_value")
        yield Failure(check, code, place, said_instead(said, wanted, code))
    elif not same_number(said, wanted) if is_number(wanted) else said != wanted:
        yield Failure(check, "wrong_value", place, f"is {_shown(said)}, not {shown(wanted)}")


def same_json(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON, by the rules of `differences`."""
    return next(differences("", one, other, ""), None) is None


def is_number(value: Any) -> bool:
    """Whether JSON would call it a number."""
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def same_number(one: float | Decimal, other: float | Decimal) -> bool:
    """Whether two numbers are equal to the last written digit: a float is taken at its shortest notation."""
    return _exact(one) == _exact(other)


def _exact(number: float | Decimal) -> int | Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else number


def plain(value: Any) -> Any:
    """`value` with integers and floats instead of exact decimals, as in other programs."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, Decimal):
        whole = value.adjusted() <= _MOST_DIGITS and value == value.to_integral_value()
        return int(value) if whole else float(value)
    return value


def _shown(value: Any) -> str:
    """As `shown`, with decimals in normal notation."""
    try:
        return shown(plain(value))
    except RecursionError:
        return shown(value)


_MOST_DIGITS = 1_000
"""The maximum of digits of an integer with an exponent: `1e999999999` would fill the memory."""

_JSON_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    Decimal: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def _json_type(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "null")


def json_decisions(
    text: str, start: int, schema: dict[str, Any] | None, value_kind: str = "value"
) -> Iterator[Decision]:
    """The decisions of the JSON value at `text[start]`.

    - every scalar (`value_kind`); what could wrongly stand there where its schema is a closed list or a boolean
    - a key that had to come because it was its object's last (`key`); before, any of the others may follow
    - every closing bracket (`close`), and every comma, where closing would have been too early
    """
    opened: list[str] = []
    last_keys: list[Token | None] = []
    for token in tokens(text, start):
        if token.kind == "open":
            opened.append(text[token.start])
            last_keys.append(None)
        elif token.kind == "close":
            opened.pop()
            key = last_keys.pop()
            if key is not None:
                yield Decision("key", key.start, key.end)
            yield Decision("close", token.start, token.end)
        elif token.kind == "comma":
            yield Decision("close", token.start, token.end, (CLOSER[opened[-1]],))
        elif token.kind == "key":
            last_keys[-1] = token
        else:
            written = text[token.start : token.end]
            yield Decision(value_kind, token.start, token.end, _wrong(written, _schema_at(schema, token.path)))


def _wrong(written: str, schema: dict[str, Any]) -> tuple[str, ...]:
    if written in ("true", "false"):
        return ("false" if written == "true" else "true",)
    value = json.loads(written)
    others = [other for other in schema.get("enum", ()) if type(other) is not type(value) or other != value]
    return tuple(json.dumps(other, ensure_ascii=False) for other in others)


def _schema_at(schema: dict[str, Any] | None, path: Path) -> dict[str, Any]:
    """The part of a schema that clearly describes the value at `path`; empty if unknown."""
    for part in path:
        if schema is None:
            return {}
        inner = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(json.loads(part))
        schema = inner if isinstance(inner, dict) else None
    return schema or {}
