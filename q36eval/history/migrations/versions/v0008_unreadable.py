"""How many items of a figure hold an answer that could not be read. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; of figures of before every answer was read."""
    op.add_column("measurements", sa.Column("unreadable", sa.Integer, nullable=False, server_default="0"))
