"""How far a run is, what happened to it, and which files it wrote. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Three tables; runs of before have nothing in them."""
    op.create_table(
        "run_progress",
        _of_run(),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.UniqueConstraint("run_id"),
    )
    op.create_table(
        "engine_events",
        sa.Column("id", sa.Integer, primary_key=True),
        _of_run(),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_index("ix_engine_events_run_id", "engine_events", ["run_id"])
    op.create_table(
        "artifacts",
        _of_run(),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("run_id", "name"),
    )


def _of_run() -> sa.Column[str]:
    return sa.Column("run_id", sa.String, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False)
