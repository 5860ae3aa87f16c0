"""Narrow rows, and texts kept once by their content; what was written before is carried over. Forward only."""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from q36eval.history.migrations.carrying_0005 import Carrier, compact

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
CHILDREN = ("probe_failures", "blessings", "sign_offs", "run_progress", "engine_events", "artifacts")
AT_ONCE = 500


def upgrade() -> None:
    """The tables of runs, measurements, items and earlier decisions are made anew, and filled from the old ones."""
    connection = op.get_bind()
    _shared()
    carrier = Carrier(connection)
    _runs(carrier)
    _measurements(carrier)
    _items(carrier)
    _earlier_decisions(carrier)


def _shared() -> None:
    op.create_table(
        "texts",
        sa.Column("id", BIG, primary_key=True),
        sa.Column("sha256", sa.LargeBinary, nullable=False, unique=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    _named("metrics", sa.Integer(), "probe", "metric", "slice")
    _named("asked", BIG, "probe", "item_group", "item_key", unique=("probe", "item_key", "item_group"))
    op.create_table(
        "readings",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("unit", "direction", "estimator")),
        sa.Column("level", sa.Float, nullable=False),
        sa.Column("method", sa.String, nullable=False),
        sa.UniqueConstraint("unit", "direction", "estimator", "level", "method"),
    )


def _named(table: str, kind: Any, *columns: str, unique: tuple[str, ...] | None = None) -> None:
    op.create_table(
        table,
        sa.Column("id", kind, primary_key=True),
        *(sa.Column(name, sa.String, nullable=False) for name in columns),
        sa.UniqueConstraint(*(unique or columns)),
    )


def _runs(carrier: Carrier) -> None:
    """Others refer to them by id, and go on to: the new table takes the old one's name once that is gone."""
    new = op.create_table(
        "runs_new",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        *(sa.Column(name, sa.String, nullable=False) for name in ("family", "branch", "state", "started")),
        *(sa.Column(name, sa.String) for name in ("finished", "verdict", "policy_name")),
        sa.Column("lanes", sa.JSON(none_as_null=True)),
        sa.Column("waived", sa.Boolean, nullable=False),
        sa.Column("awaiting_sign_off", sa.Boolean, nullable=False),
        sa.Column("exit_code", sa.Integer),
        *(sa.Column(name, sa.String) for name in ("checkpoint_sha256", "engine_version")),
        *(sa.Column(name, BIG) for name in ("identity", "reference_identity", "policy")),
        *(sa.Column(name, BIG, nullable=False) for name in ("suites", "provenance")),
        *(sa.Column(name, BIG) for name in ("report", "circumstances")),
        sa.Column("timings", BIG, nullable=False),
    )
    rows = [carrier.run(row) for row in _rows("runs", "started, id")]
    if rows:
        op.bulk_insert(new, rows)
    for table in ("measurements", "items", "earlier_decisions"):
        op.rename_table(table, f"{table}_old")
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP TABLE runs CASCADE")
    else:
        op.drop_table("runs")
    op.rename_table("runs_new", "runs")
    op.create_index("ix_runs_branch", "runs", ["family", "branch", "started"])
    op.create_index("ix_runs_started", "runs", ["started", "id"])
    if op.get_context().dialect.name == "postgresql":
        for child in CHILDREN:
            op.create_foreign_key(f"{child}_run_id_fkey", child, "runs", ["run_id"], ["id"], ondelete="CASCADE")
    numbers = op.get_bind().execute(sa.text("SELECT id, number FROM runs"))
    carrier.numbers = {row.id: row.number for row in numbers}
    _criteria(carrier)


def _of_run() -> sa.Column[int]:
    return sa.Column("run", sa.Integer, sa.ForeignKey("runs.number", ondelete="CASCADE"), primary_key=True)


def _criteria(carrier: Carrier) -> None:
    new = op.create_table(
        "criteria_results",
        _of_run(),
        sa.Column("criterion", sa.String, primary_key=True),
        sa.Column("metric", sa.Integer, sa.ForeignKey("metrics.id"), nullable=False),
        sa.Column("tier", sa.String, nullable=False),
        sa.Column("verdict", sa.String, nullable=False),
        sa.Column("waived", sa.Boolean, nullable=False),
        *(sa.Column(name, sa.Float) for name in ("loss", "loss_lower", "loss_upper", "limit")),
        sqlite_with_rowid=False,
    )
    rows = carrier.criteria()
    if rows:
        op.bulk_insert(new, rows)


def _measurements(carrier: Carrier) -> None:
    new = op.create_table(
        "measurements",
        _of_run(),
        sa.Column("metric", sa.Integer, sa.ForeignKey("metrics.id"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("reading", sa.Integer, sa.ForeignKey("readings.id"), nullable=False),
        *(sa.Column(name, sa.Float) for name in ("value", "reference_value", "effect", "lower", "upper")),
        sa.Column("scored", sa.Integer, nullable=False),
        sa.Column("errored", sa.Integer, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("not_finite", sa.JSON(none_as_null=True)),
        sa.Column("value_interval", sa.JSON(none_as_null=True)),
        sa.Column("clusters", BIG),
        sqlite_with_rowid=False,
    )
    for rows in _in_parts("measurements_old"):
        op.bulk_insert(new, carrier.measurements(rows))
    op.drop_table("measurements_old")


def _items(carrier: Carrier) -> None:
    new = op.create_table(
        "items",
        _of_run(),
        sa.Column("asked", BIG, sa.ForeignKey("asked.id"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("must_pass", sa.Boolean, nullable=False),
        sa.Column("flip", sa.SmallInteger),
        sa.Column("errored", sa.Boolean, nullable=False),
        sa.Column("question", BIG, nullable=False),
        sa.Column("answer", BIG, nullable=False),
        sqlite_with_rowid=False,
    )
    for rows in _in_parts("items_old"):
        op.bulk_insert(new, carrier.items(rows))
    op.drop_table("items_old")


def _earlier_decisions(carrier: Carrier) -> None:
    new = op.create_table(
        "earlier_decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("replaced", sa.String, nullable=False),
        sa.Column("report", BIG, nullable=False),
        sa.Column("circumstances", BIG),
    )
    for row in _rows("earlier_decisions_old", "id"):
        kept = {"run_id": row["run_id"], "replaced": row["replaced"]}
        texts = {name: carrier.text(compact(row[name])) for name in ("report", "circumstances")}
        op.bulk_insert(new, [{**kept, **texts}])
    op.drop_table("earlier_decisions_old")


def _rows(table: str, order: str) -> list[dict[str, Any]]:
    """All rows, JSON columns as the text they hold: SQLite keeps them so, and in PostgreSQL there are none yet."""
    found = op.get_bind().execute(sa.text(f"SELECT * FROM {table} ORDER BY {order}"))
    return [{name: _plain(value) for name, value in row._mapping.items()} for row in found]


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _in_parts(table: str) -> Iterator[list[dict[str, Any]]]:
    last = 0
    query = sa.text(f"SELECT * FROM {table} WHERE id > :last ORDER BY id LIMIT {AT_ONCE}")
    while rows := [dict(row._mapping) for row in op.get_bind().execute(query, {"last": last})]:
        yield rows
        last = rows[-1]["id"]
