"""What the reference can do of each family of items, and why answers are not right, beside a figure. Forward only."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns; figures of before hold neither."""
    op.add_column("measurements", sa.Column("competence", sa.BigInteger().with_variant(sa.Integer, "sqlite")))
    op.add_column("measurements", sa.Column("causes", sa.JSON(none_as_null=True)))
