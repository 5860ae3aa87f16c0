"""The tables, as the newest migration leaves them."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy import UniqueConstraint as Unique

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("family", String, nullable=False),
    Column("branch", String, nullable=False),
    Column("identity", JSON(none_as_null=True)),
    Column("reference_identity", JSON(none_as_null=True)),
    Column("policy", JSON(none_as_null=True)),
    Column("suites", JSON, nullable=False),
    Column("provenance", JSON, nullable=False),
    Column("state", String, nullable=False),
    # UTC in ISO 8601 of fixed width, so that text order is time order
    Column("started", String, nullable=False),
    Column("finished", String),
    Column("verdict", String),
    Column("report", JSON(none_as_null=True)),
    Column("circumstances", JSON(none_as_null=True)),
    Column("timings", JSON, nullable=False, server_default="{}"),
    Index("ix_runs_branch", "family", "branch", "started"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("probe", String, nullable=False),
    Column("metric", String, nullable=False),
    Column("slice", String, nullable=False),
    # SQLite turns NaN into NULL, so what kind of number it is stands beside it
    Column("value", Float),
    Column("value_kind", String, nullable=False),
    Column("effect", Float),
    Column("effect_kind", String, nullable=False),
    Column("scored", Integer, nullable=False),
    Column("errored", Integer, nullable=False),
    Column("record", Text, nullable=False),
    Column("clusters", Text),
    Unique("run_id", "probe", "metric", "slice"),
)

items = Table(
    "items",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("probe", String, nullable=False),
    Column("item_group", String, nullable=False),
    Column("item_key", String, nullable=False),
    Column("must_pass", Boolean, nullable=False),
    Column("flip", String),
    Column("errored", Boolean, nullable=False),
    Column("record", Text, nullable=False),
    Unique("run_id", "probe", "item_key", "item_group"),
)

probe_failures = Table(
    "probe_failures",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("probe", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("reason", Text, nullable=False),
    Unique("run_id", "probe", "kind", "reason"),
)

blessings = Table(
    "blessings",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("owner", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", String, nullable=False),
)

waivers = Table(
    "waivers",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("family", String, nullable=False),
    Column("branch", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("criterion", String),
    Column("expires", String, nullable=False),
    Column("revoked", String),
    Column("canary", String),
    Column("slice", String),
    Column("added", String),
    Column("revoked_by", String),
)

earlier_decisions = Table(
    "earlier_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("replaced", String, nullable=False),
    Column("report", JSON, nullable=False),
    Column("circumstances", JSON(none_as_null=True)),
)

sign_offs = Table(
    "sign_offs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("owner", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", String, nullable=False),
    Column("report_sha256", String, nullable=False),
)

run_progress = Table(
    "run_progress",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("stage", String, nullable=False),
    Column("done", Integer, nullable=False),
    Column("total", Integer, nullable=False),
    Column("at", String, nullable=False),
    Unique("run_id"),
)

engine_events = Table(
    "engine_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("at", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("message", Text, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("run_id", ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    Column("name", String, nullable=False),
    Column("sha256", String, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Unique("run_id", "name"),
)
