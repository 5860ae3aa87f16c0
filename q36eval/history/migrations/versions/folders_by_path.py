"""Names the branches that are folders by absolute paths: before, folders of one name were one branch."""

import json
from collections import defaultdict
from pathlib import PurePath

import sqlalchemy as sa
from alembic import op

from q36eval.files import absolute_path
from q36eval.history._texts import texts_of

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

runs = sa.table("runs", *map(sa.column, ("number", "family", "branch", "provenance")))
waivers = sa.table("waivers", *map(sa.column, ("family", "branch")))


def upgrade() -> None:
    """Rename the runs whose provenance has the path; the others stay under the old name, which no new run has.

    A waiver goes with the runs of its branch where they are all of one folder. Else it stays behind and excuses no
    run of either folder.
    """
    database = op.get_bind()
    rows = database.execute(sa.select(runs)).all()
    texts = texts_of(database, {row.provenance for row in rows})
    paths: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        named = json.loads(texts.get(row.provenance, "{}")).get("named", "")
        known = named.startswith("/") and PurePath(named).name == row.branch
        path = str(absolute_path(named)) if known else row.branch
        paths[row.family, row.branch].add(path)
        database.execute(sa.update(runs).where(runs.c.number == row.number).values(branch=path))
    for (family, branch), of_runs in paths.items():
        if len(of_runs) == 1:
            of_branch = waivers.c.family == family, waivers.c.branch == branch
            database.execute(sa.update(waivers).where(*of_branch).values(branch=of_runs.pop()))
