"""First tables: runs, measurements, items, probe failures, blessings, waivers. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Written out, not derived from the tables of today: a migration must keep meaning what it meant."""
    _runs()
    _measurements()
    _items()
    _notes()


def _of_run() -> sa.Column[str]:
    return sa.Column("run_id", sa.String, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("family", sa.String, nullable=False),
        sa.Column("branch", sa.String, nullable=False),
        sa.Column("identity", sa.JSON),
        sa.Column("reference_identity", sa.JSON),
        sa.Column("policy", sa.JSON),
        sa.Column("suites", sa.JSON, nullable=False),
        sa.Column("provenance", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("started", sa.String, nullable=False),
        sa.Column("finished", sa.String),
        sa.Column("verdict", sa.String),
        sa.Column("report", sa.JSON),
    )
    op.create_index("ix_runs_branch", "runs", ["family", "branch", "started"])


def _measurements() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", sa.Integer, primary_key=True),
        _of_run(),
        sa.Column("probe", sa.String, nullable=False),
        sa.Column("metric", sa.String, nullable=False),
        sa.Column("slice", sa.String, nullable=False),
        sa.Column("value", sa.Float),
        sa.Column("value_kind", sa.String, nullable=False),
        sa.Column("effect", sa.Float),
        sa.Column("effect_kind", sa.String, nullable=False),
        sa.Column("scored", sa.Integer, nullable=False),
        sa.Column("errored", sa.Integer, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.Column("clusters", sa.Text),
        sa.UniqueConstraint("run_id", "probe", "metric", "slice"),
    )


def _items() -> None:
    op.create_table(
        "items",
        sa.Column("id", sa.Integer, primary_key=True),
        _of_run(),
        sa.Column("probe", sa.String, nullable=False),
        sa.Column("item_group", sa.String, nullable=False),
        sa.Column("item_key", sa.String, nullable=False),
        sa.Column("must_pass", sa.Boolean, nullable=False),
        sa.Column("flip", sa.String),
        sa.Column("errored", sa.Boolean, nullable=False),
        sa.Column("record", sa.Text, nullable=False),
        sa.UniqueConstraint("run_id", "probe", "item_key", "item_group"),
    )


def _notes() -> None:
    op.create_table(
        "probe_failures",
        sa.Column("id", sa.Integer, primary_key=True),
        _of_run(),
        sa.Column("probe", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.UniqueConstraint("run_id", "probe", "kind", "reason"),
    )
    op.create_table(
        "blessings",
        sa.Column("id", sa.Integer, primary_key=True),
        _of_run(),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.String, nullable=False),
    )
    op.create_table(
        "waivers",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("family", sa.String, nullable=False),
        sa.Column("branch", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("criterion", sa.String, nullable=False),
        sa.Column("expires", sa.String, nullable=False),
        sa.Column("revoked", sa.String),
    )
