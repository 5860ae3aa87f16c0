"""Shared content, stored once: texts by their content, compressed, and names by their columns.

The same question, answer or policy of a thousand runs is one row.
"""

import hashlib
import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlalchemy import Connection, Table, and_, delete, func, or_, select, union

from q36eval.errors import UsageError
from q36eval.history import _tables as tables
from q36eval.history._database import Connected, upserting

AT_ONCE = 500
"""Values in one IN list; SQLite takes 32,766 variables, and short statements are cached."""

Key = tuple[Any, ...]
"""The values of the unique columns by which a row is known."""

PLAIN, DEFLATED = b"\0", b"\1"
"""The first byte of stored data, which defines the format of the rest."""

KEEPERS = 0x71336B65
"""Advisory lock of PostgreSQL: shared by writers of texts, exclusive for removing unused ones."""

DICTIONARY = (
    b'"thresholds":[,"above":[[,"schedule":{"largest":1,"blocks":[,"bounds":[-1.0,1.0],"strata":null,"tail":null,'
    b'"units":[1,1,1,1,1,1],"branch":[0.0,0.0,1.0,1.0],"reference":[1.0,1.0],"errored":[0,0,0,0,0,0,0],"names":["'
    b'"log_likelihoods":{"A":-0.00,"B":-1.,"C":-2.,"D":-3.},"margin_nats":-0.0,"error":null,"detail":{"failures":["'
    b"The following are multiple choice questions (with answers) about \\n\\n\\nA. \\nB. \\nC. \\nD. \\nAnswer:"
    b"<|im_start|>system\\n<|im_end|>\\n<|im_start|>user\\n<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n"
    b'{"cluster":"","stratum":"all","prompt":"","expected":"","reference":{"score":1.0,"text":"'
    b'{"score":0.0,"text":"","error":null,"detail":{}}}'
    b'{"score":1.0,"text":"","error":null,"detail":{"failures":[],"finish_reason":"stop"}}}'
)
"""A compression dictionary of common text: half of a short text need not be stored. It must never change; another one
needs another first byte."""


def packed(text: str) -> bytes:
    """A text in its stored form."""
    raw = text.encode()
    deflate = zlib.compressobj(9, zdict=DICTIONARY)
    small = deflate.compress(raw) + deflate.flush()
    return DEFLATED + small if len(small) < len(raw) else PLAIN + raw


def unpacked(data: bytes) -> str:
    """The stored text.

    Raises:
        UsageError: it is damaged, or a newer version wrote it.
    """
    kept = bytes(data)
    try:
        if kept[:1] == PLAIN:
            return kept[1:].decode()
        if kept[:1] == DEFLATED:
            inflate = zlib.decompressobj(zdict=DICTIONARY)
            return (inflate.decompress(kept[1:]) + inflate.flush()).decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise UsageError(
            "history-damaged", f"history holds a text that cannot be read ({error}): the database is damaged."
        ) from error
    raise UsageError("history-unreadable", "history holds a text that this version cannot read: upgrade q36eval.")


def digest(text: str) -> bytes:
    """The key for finding a text."""
    return hashlib.sha256(text.encode()).digest()


def json_text(value: BaseModel | Any) -> str:
    """Strict JSON: of a record, or of values that are JSON already."""
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def json_values(record: BaseModel) -> Any:
    """A record as strict JSON values: non-finite floats as strings, which `model_dump` alone would leave as floats."""
    return json.loads(record.model_dump_json())


def keep(connection: Connection, texts: Collection[str]) -> dict[str, int]:
    """Numbers of texts; new ones are written."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock_shared(KEEPERS)))
    by_digest = {digest(text): text for text in texts}
    numbers = _numbers(connection, list(by_digest))
    # in one order in every process, so that two writers of the same texts never deadlock
    missing = sorted(by_digest.keys() - numbers.keys())
    if missing:
        rows = [{"sha256": sha256, "data": packed(by_digest[sha256])} for sha256 in missing]
        connection.execute(upserting(connection)(tables.texts).on_conflict_do_nothing(), rows)
        numbers |= _numbers(connection, missing)
    return {text: numbers[sha256] for sha256, text in by_digest.items()}


def _numbers(connection: Connection, digests: Sequence[bytes]) -> dict[bytes, int]:
    columns, numbers = tables.texts.c, dict[bytes, int]()
    for part in _parts(digests):
        rows = connection.execute(select(columns.sha256, columns.id).where(columns.sha256.in_(part)))
        numbers |= {bytes(row.sha256): row.id for row in rows}
    return numbers


def texts_of(connection: Connection, numbers: Iterable[int | None]) -> dict[int, str]:
    """Texts by their numbers."""
    columns, texts = tables.texts.c, dict[int, str]()
    for part in _parts(sorted({number for number in numbers if number is not None})):
        rows = connection.execute(select(columns.id, columns.data).where(columns.id.in_(part)))
        texts |= {row.id: unpacked(row.data) for row in rows}
    return texts


def _parts(values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE))


def kept(connection: Connection, texts: Mapping[str, str | None]) -> dict[str, int | None]:
    """Columns that refer to texts, which are written."""
    numbers = keep(connection, {text for text in texts.values() if text is not None})
    return {name: None if text is None else numbers[text] for name, text in texts.items()}


def text_value(texts: Mapping[int, str], number: int | None, what: str) -> Any:
    """The JSON of a text.

    Raises:
        UsageError: the text is gone.
    """
    if number is None:
        return None
    if number not in texts:
        raise UsageError("history-damaged", f"history holds {what}, of which a part is gone: the database is damaged.")
    return json.loads(texts[number])


def unreadable(what: str, error: ValidationError) -> UsageError:
    """The refusal of a row with content unknown to this version."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "its beginning"
    return UsageError(
        "history-unreadable",
        f"history holds {what}, which cannot be read (at {where}: {first['msg'].splitlines()[0].rstrip('.')}): it was "
        "written by a newer version, or changed since.",
    )


def numbered(connection: Connection, table: Table, keys: Sequence[Key]) -> dict[Key, int]:
    """Numbers of the rows of a table that are known by their unique columns; they are written where they are new."""
    names = [column.name for column in table.columns if not column.primary_key]
    wanted = sorted(set(keys))
    numbers = _known_names(connection, table, names, wanted)
    missing = [key for key in wanted if key not in numbers]
    if missing:
        rows = [dict(zip(names, key, strict=True)) for key in missing]
        connection.execute(upserting(connection)(table).on_conflict_do_nothing(), rows)
        numbers |= _known_names(connection, table, names, missing)
    return numbers


def _known_names(connection: Connection, table: Table, names: list[str], keys: Sequence[Key]) -> dict[Key, int]:
    columns, numbers = [table.c[name] for name in names], {}
    for start in range(0, len(keys), 100):
        several = keys[start : start + 100]
        same = or_(*(and_(*(column == value for column, value in zip(columns, key, strict=True))) for key in several))
        for row in connection.execute(select(*table.primary_key.columns, *columns).where(same)):
            numbers[tuple(row[1:])] = int(row[0])
    return numbers


class Texts(Connected):
    """Removal of texts that no run refers to."""

    def remove_unused_texts(self) -> None:
        """Remove the texts that nothing refers to: a run was deleted, an item evaluated again."""
        with self._write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(KEEPERS)))
            used = union(*(select(column).where(column.is_not(None)) for column in REFERRING))
            connection.execute(delete(tables.texts).where(tables.texts.c.id.not_in(used)))


REFERRING: Sequence[Any] = (
    *(tables.runs.c[name] for name in tables.RUN_TEXTS),
    *(tables.items.c[name] for name in ("question", "answer")),
    *(tables.measurements.c[name] for name in ("clusters", "competence")),
    *(tables.earlier_decisions.c[name] for name in ("report", "circumstances")),
)
"""The columns that refer to texts."""
