"""Turns rows of schema 0004 into those of 0005; of today's code it uses only how texts are kept, which stays."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

import sqlalchemy as sa

from q36eval.errors import UsageError
from q36eval.history._texts import digest, packed

Row = dict[str, Any]
Key = tuple[Any, ...]

TEXTS = ("identity", "reference_identity", "policy", "suites", "provenance", "report", "circumstances", "timings")
FIGURES = ("value", "reference_value", "effect", "lower", "upper")
KINDS = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
"""How records write what is no finite number, and how the new columns call it."""


def compact(text: str | None) -> str | None:
    """JSON without blanks, so that what is written later finds it by its content."""
    return None if text is None or text == "null" else compacted(json.loads(text))


def compacted(values: Any) -> str:
    """The same of values."""
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


class Carrier:
    """Remembers which texts and names it has written, and gives new rows for old ones."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._texts: dict[bytes, int] = {}
        self._names: dict[str, dict[Key, int]] = {}
        self._reports: dict[str, Any] = {}
        self._items: dict[str, Iterator[int]] = defaultdict(count)
        self._measurements: dict[str, Iterator[int]] = defaultdict(count)
        self.numbers: dict[str, int] = {}
        """Numbers of the new runs, by id."""

    def text(self, text: str | None) -> int | None:
        """The number of a text, which is written when it is new."""
        if text is None:
            return None
        sha256 = digest(text)
        if sha256 not in self._texts:
            self._texts[sha256] = len(self._texts) + 1
            self._insert("texts", {"id": self._texts[sha256], "sha256": sha256, "data": packed(text)})
        return self._texts[sha256]

    def _number(self, table: str, **columns: Any) -> int:
        known, key = self._names.setdefault(table, {}), tuple(columns.values())
        if key not in known:
            known[key] = len(known) + 1
            self._insert(table, {"id": known[key], **columns})
        return known[key]

    def _insert(self, table: str, row: Row) -> None:
        names = ", ".join(row)
        values = ", ".join(f":{name}" for name in row)
        self._connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)

    def run(self, row: Row) -> Row:
        """A run; its report is remembered for `criteria`."""
        parts = {name: _json(row[name], f"run {row['id']}") for name in TEXTS}
        report, identity, policy = (parts[name] or {} for name in ("report", "identity", "policy"))
        self._reports[row["id"]] = report
        lanes = {lane["lane"]: lane["verdict"] for lane in report.get("lanes", ())}
        return {
            **{name: row[name] for name in ("id", "family", "branch", "state", "started", "finished", "verdict")},
            "policy_name": policy.get("name"),
            "lanes": lanes if report else None,
            "waived": bool(report.get("waived")),
            "awaiting_sign_off": bool(report.get("awaiting_sign_off")),
            "exit_code": report.get("exit_code"),
            "checkpoint_sha256": identity.get("checkpoint_sha256"),
            "engine_version": identity.get("engine_version"),
            **{name: None if parts[name] is None else self.text(compacted(parts[name])) for name in TEXTS},
        }

    def criteria(self) -> list[Row]:
        """The criteria of all reports."""
        return [
            self._criterion(self.numbers[run_id], criterion)
            for run_id, report in self._reports.items()
            for criterion in report.get("criteria", ())
        ]

    def _criterion(self, run: int, found: Row) -> Row:
        interval = found.get("loss_interval") or {}
        names = {name: found[name] for name in ("probe", "metric", "slice")}
        figures = {"loss": found.get("loss"), "limit": found.get("limit")}
        figures |= {"loss_lower": interval.get("lower"), "loss_upper": interval.get("upper")}
        return {
            "run": run,
            "criterion": found["id"],
            "metric": self._number("metrics", **names),
            "tier": found["tier"],
            "verdict": found["verdict"],
            "waived": bool(found.get("waived_by")),
            **{name: value if isinstance(value, int | float) else None for name, value in figures.items()},
        }

    def measurements(self, rows: list[Row]) -> list[Row]:
        """Measurements, in the order they were written."""
        return [self._measurement(row, _json(row["record"], f"measurement {row['id']}")) for row in rows]

    def _measurement(self, row: Row, record: Row) -> Row:
        interval, counts = record["effect_interval"], record["counts"]
        metric = self._number("metrics", **{name: record[name] for name in ("probe", "metric", "slice")})
        reading = {name: record[name] for name in ("unit", "direction", "estimator")}
        figures = {name: (interval if name in interval else record).get(name) for name in FIGURES}
        not_finite = {name: KINDS[value] for name, value in figures.items() if value in KINDS}
        negative_zeros = {name: "-0.0" for name, value in figures.items() if str(value) == "-0.0"}
        return {
            "run": self.numbers[row["run_id"]],
            "metric": metric,
            "position": next(self._measurements[row["run_id"]]),
            "reading": self._number("readings", **reading, level=interval["level"], method=interval["method"]),
            **{name: None if name in not_finite else value for name, value in figures.items()},
            "scored": counts["scored"],
            "errored": counts["errored"],
            "note": record.get("note", ""),
            "not_finite": not_finite | negative_zeros or None,
            "value_interval": record.get("value_interval"),
            "clusters": self.text(row["clusters"]),
        }

    def items(self, rows: list[Row]) -> list[Row]:
        """Item outcomes."""
        return [self._item(row, _json(row["record"], f"item {row['id']}")) for row in rows]

    def _item(self, row: Row, record: Row) -> Row:
        question = {name: record.get(name) for name in ("cluster", "stratum", "prompt", "expected", "reference")}
        flips = {None: None, "regression": 1, "improvement": 2}
        return {
            "run": self.numbers[row["run_id"]],
            "asked": self._number("asked", **{name: row[name] for name in ("probe", "item_group", "item_key")}),
            "position": next(self._items[row["run_id"]]),
            "must_pass": bool(row["must_pass"]),
            "flip": flips[row["flip"]],
            "errored": bool(row["errored"]),
            "question": self.text(compacted(question)),
            "answer": self.text(compacted(record["branch"])),
        }


def _json(text: str | None, what: str) -> Any:
    try:
        return None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"The history holds {what}, which is no JSON ({error}); it was left as it is.") from error
