"""Which characters of a right JSON text were decisions."""

import json
from collections.abc import Iterator
from typing import Any

from q36eval.canaries.checks._base import Decision
from q36eval.canaries.checks._json_tokens import Path, Token, tokens

_CLOSER = {"{": "}", "[": "]"}


def json_decisions(text: str, start: int, schema: dict[str, Any] | None, value_kind: str = "value") -> list[Decision]:
    """The decisions of the JSON value at `text[start]`.

    - every scalar (`value_kind`); what could wrongly stand there where its schema is a closed list or a boolean
    - a key that had to come because it was its object's last (`key`); before, any of the others may follow
    - every closing bracket (`close`), and every comma, where closing would have been too early
    """
    return list(_decisions(text, start, schema, value_kind))


def _decisions(text: str, start: int, schema: dict[str, Any] | None, value_kind: str) -> Iterator[Decision]:
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
            yield Decision("close", token.start, token.end, (_CLOSER[opened[-1]],))
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
    """The part of a schema that plainly describes the value at `path`; empty where it cannot be told so."""
    for part in path:
        if schema is None:
            return {}
        inner = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(json.loads(part))
        schema = inner if isinstance(inner, dict) else None
    return schema or {}
