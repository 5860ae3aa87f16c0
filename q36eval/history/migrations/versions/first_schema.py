"""The first schema: an empty database gets the tables as `_tables` has them today, so later steps find them there."""

import uuid

from alembic import op
from sqlalchemy import insert

from q36eval.history._tables import history, metadata

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables and indexes in an empty database, and give the history an id that no other one has."""
    metadata.create_all(op.get_bind(), checkfirst=False)
    op.execute(insert(history).values(id=uuid.uuid4().hex))
