"""The tables of the newest schema; `_migration` describes how to change them.

Content that is long or shared by many runs (a question, an answer, clusters, a policy, an identity, a report) is a text
stored once by its content; rows of runs, measurements and items hold numbers and references. References to texts are
not foreign keys: only `remove_unused_texts` removes a text, and a key would make it search every table for every text.
"""

import math
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy import UniqueConstraint as Unique

metadata = MetaData()

BigNumber = BigInteger().with_variant(Integer, "sqlite")
"""SQLite's own row number, which is as big, is called INTEGER."""


class Words(TypeDecorator[str]):
    """Free text in a form that every database can store: NUL and half surrogates are escaped."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        if value is None or (value.isascii() and "\0" not in value):
            return value
        return value.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "backslashreplace").decode()


def _of_run() -> Column[Any]:
    return Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


def _filled(kind: Any, *names: str) -> list[Column[Any]]:
    """Required columns of that type."""
    return [Column(name, kind, nullable=False) for name in names]


FIGURES = ("value", "reference_value", "effect", "lower", "upper")
"""The columns of measurements whose values `not_finite` describes if SQLite cannot store them."""

schema = Table("alembic_version", metadata, Column("version_num", String(32), primary_key=True))
"""One row: the version of the schema. The table has the name that older versions gave it."""

texts = Table(
    "texts",
    metadata,
    Column("id", BigNumber, primary_key=True),
    Column("sha256", LargeBinary, nullable=False, unique=True),
    Column("data", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("number", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    # `started` is UTC in ISO 8601 of fixed width, so that text order is time order
    *_filled(String, "family", "branch", "state", "started"),
    Column("finished", String),
    # what a list shows of the report, the policy and the identity below
    Column("verdict", String),
    Column("policy_name", String),
    Column("lanes", JSON(none_as_null=True)),
    *_filled(Boolean, "waived", "awaiting_sign_off"),
    Column("exit_code", Integer),
    # the time of import from another history; empty for a local run
    Column("imported", String),
    Column("checkpoint_sha256", String),
    Column("engine_version", String),
    Column("identity", BigNumber),
    Column("reference_identity", BigNumber),
    Column("policy", BigNumber),
    Column("suites", BigNumber, nullable=False),
    Column("provenance", BigNumber, nullable=False),
    Column("report", BigNumber),
    Column("circumstances", BigNumber),
    Column("timings", BigNumber, nullable=False),
    Index("ix_runs_branch", "family", "branch", "started"),
    Index("ix_runs_started", "started", "id"),
)

RUN_TEXTS = (
    "identity",
    "reference_identity",
    "policy",
    "suites",
    "provenance",
    "report",
    "circumstances",
    "timings",
)
"""The columns of a run that refer to texts; they bear the names of the record's fields."""

metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    *_filled(String, "probe", "metric", "slice"),
    Unique("probe", "metric", "slice"),
)

readings = Table(
    "readings",
    metadata,
    Column("id", Integer, primary_key=True),
    *_filled(String, "unit", "direction", "estimator"),
    Column("level", Float, nullable=False),
    Column("method", String, nullable=False),
    Unique("unit", "direction", "estimator", "level", "method"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("run", ForeignKey("runs.number", ondelete="CASCADE"), primary_key=True),
    Column("metric", ForeignKey("metrics.id"), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("reading", ForeignKey("readings.id"), nullable=False),
    # SQLite turns NaN into NULL, and -0.0 into 0.0: `not_finite` describes these values of the five columns
    *(Column(name, Float) for name in FIGURES),
    *_filled(Integer, "scored", "errored"),
    Column("note", Words, nullable=False),
    Column("not_finite", JSON(none_as_null=True)),
    Column("value_interval", JSON(none_as_null=True)),
    Column("clusters", BigNumber),
    Column("competence", BigNumber),
    Column("causes", JSON(none_as_null=True)),
    Column("unreadable", Integer, nullable=False),
    sqlite_with_rowid=False,
)

asked = Table(
    "asked",
    metadata,
    Column("id", BigNumber, primary_key=True),
    *_filled(String, "probe", "item_group", "item_key"),
    Unique("probe", "item_key", "item_group"),
)

items = Table(
    "items",
    metadata,
    Column("run", ForeignKey("runs.number", ondelete="CASCADE"), primary_key=True),
    Column("asked", ForeignKey("asked.id"), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("must_pass", Boolean, nullable=False),
    # 1 regression, 2 improvement
    Column("flip", SmallInteger),
    Column("errored", Boolean, nullable=False),
    *_filled(BigNumber, "question", "answer"),
    sqlite_with_rowid=False,
)

probe_failures = Table(
    "probe_failures",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_run(),
    *_filled(String, "probe", "kind"),
    Column("reason", Words, nullable=False),
    Unique("run_id", "probe", "kind", "reason"),
)

blessings = Table(
    "blessings",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_run(),
    Column("owner", String, nullable=False),
    Column("reason", Words, nullable=False),
    Column("at", String, nullable=False),
    Column("revoked", String),
    Column("revoked_by", String),
    Column("revoked_why", Words),
)

waivers = Table(
    "waivers",
    metadata,
    Column("id", Integer, primary_key=True),
    *_filled(String, "family", "branch", "owner"),
    Column("reason", Words, nullable=False),
    Column("criterion", String),
    Column("expires", String, nullable=False),
    Column("revoked", String),
    Column("canary", String),
    Column("slice", String),
    Column("added", String, nullable=False),
    Column("revoked_by", String),
)

archivings = Table(
    "archivings",
    metadata,
    Column("id", Integer, primary_key=True),
    *_filled(String, "family", "branch", "owner"),
    Column("reason", Words, nullable=False),
    Column("at", String, nullable=False),
    Column("archived", Boolean, nullable=False),
)

earlier_decisions = Table(
    "earlier_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_run(),
    Column("replaced", String, nullable=False),
    Column("report", BigNumber, nullable=False),
    Column("circumstances", BigNumber),
)

sign_offs = Table(
    "sign_offs",
    metadata,
    Column("id", Integer, primary_key=True),
    _of_run(),
    Column("owner", String, nullable=False),
    Column("reason", Words, nullable=False),
    *_filled(String, "at", "report_sha256"),
)

run_progress = Table(
    "run_progress",
    metadata,
    _of_run(),
    Column("stage", Words, nullable=False),
    *_filled(Integer, "done", "total"),
    Column("at", String, nullable=False),
    # an earlier version that still measures writes none
    Column("remaining", Words, nullable=False, server_default=""),
    Unique("run_id"),
)

engine_events = Table(
    "engine_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, index=True),
    *_filled(String, "at", "kind"),
    Column("message", Words, nullable=False),
)


def timestamp(moment: datetime) -> str:
    """UTC in ISO 8601 of fixed width."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


NEGATIVE_ZERO = "-0.0"


def number_kind(value: float) -> str:
    """What kind of number it is: finite, nan, inf, -inf, or -0.0, of which SQLite keeps no sign."""
    if math.isfinite(value):
        return NEGATIVE_ZERO if value == 0 and math.copysign(1, value) < 0 else "finite"
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def figure(row: Any, name: str) -> float | None:
    """One of the `FIGURES` of a row."""
    kinds = row.not_finite or {}
    if name in kinds:
        return float(kinds[name])
    value: float | None = getattr(row, name)
    return value
