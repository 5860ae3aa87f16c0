"""What was found of each branch's drift, kept beside its runs. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One table; what it holds is found anew where it is missing."""
    op.create_table(
        "kept_drifts",
        sa.Column("family", sa.String, primary_key=True),
        sa.Column("branch", sa.String, primary_key=True),
        sa.Column("stand", sa.String, nullable=False),
        sa.Column("found", sa.Text, nullable=False),
    )
