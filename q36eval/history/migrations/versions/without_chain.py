"""Removes the chain of entries, and what marked a decision as imported: no decision travels between histories."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

DECISIONS = ("blessings", "waivers", "sign_offs")


def upgrade() -> None:
    """Keep the id, which was the hash of the chain's first entry, and the decisions that were in force.

    An imported decision that nobody had accepted never counted, so it goes. An accepted blessing counted from its
    acceptance, which becomes its date.
    """
    if not sa.inspect(op.get_bind()).has_table("ledger"):  # a new history
        return
    op.create_table("history", sa.Column("id", sa.String, primary_key=True))
    op.execute("INSERT INTO history (id) SELECT sha256 FROM ledger WHERE position = 0")
    op.drop_table("ledger")
    op.execute("UPDATE blessings SET at = accepted WHERE accepted IS NOT NULL")
    for table in DECISIONS:
        op.execute(f"DELETE FROM {table} WHERE imported IS NOT NULL AND accepted IS NULL")
        with op.batch_alter_table(table) as changed:
            for column in ("imported", "accepted", "accepted_by"):
                changed.drop_column(column)
