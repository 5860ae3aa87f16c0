"""A schema version that no release has: what the machinery of migrations must do is shown on it."""

import shutil
from pathlib import Path

import pytest

from q36eval.history import _migration as migrating

NEXT = "9999"

SCRIPT = f'''
"""A table that others refer to is made anew where the database can only do that, with a column filled from its rows."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "{NEXT}", "{migrating.HEAD}", None, None


def upgrade() -> None:
    op.add_column("runs", sa.Column("place", sa.Text))
    op.execute("UPDATE runs SET place = family || '/' || branch")
    with op.batch_alter_table("runs") as runs:
        runs.alter_column("place", existing_type=sa.Text, nullable=False, server_default="")
    op.add_column("measurements", sa.Column("weight", sa.Float, nullable=False, server_default="1"))
'''


def add_next_version(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on the newest schema is `NEXT`."""
    scripts = folder / "migrations"
    shutil.copytree(migrating.MIGRATIONS, scripts)
    (scripts / "versions" / "next_version.py").write_text(SCRIPT, encoding="utf-8")
    patch.setattr(migrating, "MIGRATIONS", scripts)
    patch.setattr(migrating, "HEAD", NEXT)
