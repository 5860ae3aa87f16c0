"""Changes what history keeps behind its back."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from q36eval.history._texts import digest, packed, unpacked


def tamper(file: Path, statement: str) -> None:
    """Run a statement of SQL."""
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(statement)


def tamper_text(file: Path, table: str, column: str, edit: Callable[[str], str]) -> None:
    """Change the text that each row of a table refers to by that column."""
    with closing(sqlite3.connect(file)) as raw, raw:
        query = f"SELECT DISTINCT texts.id, data FROM texts JOIN {table} ON texts.id = {table}.{column}"
        for number, data in raw.execute(query).fetchall():
            text = edit(unpacked(data))
            raw.execute("INSERT OR IGNORE INTO texts (sha256, data) VALUES (?, ?)", (digest(text), packed(text)))
            (other,) = raw.execute("SELECT id FROM texts WHERE sha256 = ?", (digest(text),)).fetchone()
            raw.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (other, number))


def of_json(edit: Callable[[Any], object]) -> Callable[[str], str]:
    """An edit of the values that a text holds; it changes them in place."""

    def edited(text: str) -> str:
        values = json.loads(text)
        edit(values)
        return json.dumps(values, ensure_ascii=False, separators=(",", ":"))

    return edited
