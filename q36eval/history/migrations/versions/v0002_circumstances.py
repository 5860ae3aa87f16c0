"""What a verdict hangs on besides its evidence, how long each stage took, wider waivers, sign-offs. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """A waiver may name a slice or a canary instead of a criterion."""
    op.add_column("runs", sa.Column("circumstances", sa.JSON))
    op.add_column("runs", sa.Column("timings", sa.JSON, nullable=False, server_default="{}"))
    with op.batch_alter_table("waivers") as waivers:
        waivers.alter_column("criterion", existing_type=sa.String, nullable=True)
        waivers.add_column(sa.Column("canary", sa.String))
        waivers.add_column(sa.Column("slice", sa.String))
    op.create_table(
        "sign_offs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at", sa.String, nullable=False),
        sa.Column("report_sha256", sa.String, nullable=False),
    )
