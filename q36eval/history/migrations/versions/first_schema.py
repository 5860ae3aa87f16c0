"""The first schema: the tables as `_tables` has them. How it is changed stands in `q36eval.history.migrations`."""

from alembic import op

from q36eval.history._ledger import begin
from q36eval.history._tables import metadata

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables and indexes in an empty database, and the first entry of its chain."""
    metadata.create_all(op.get_bind(), checkfirst=False)
    begin(op.get_bind())
