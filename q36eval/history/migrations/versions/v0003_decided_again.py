"""Decisions that later ones replaced, and when and by whom waivers were written and taken back. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Waivers of before keep what was known of them: not when they were written."""
    op.add_column("waivers", sa.Column("added", sa.String))
    op.add_column("waivers", sa.Column("revoked_by", sa.String))
    op.create_table(
        "earlier_decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("replaced", sa.String, nullable=False),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("circumstances", sa.JSON),
    )
