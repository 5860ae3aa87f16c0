"""What stands in a request's way, printed before the errors that refuse it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.app.needs import Asked


@contextmanager
def tabling(asked: "Asked", *, is_plan: bool) -> Iterator[None]:
    """A usage error within is raised with the unmet rows of the table; several are printed, unless a plan did.

    Raises:
        RefusedError: as what was raised, with rows.
    """
    from q36eval.app.cli.plan_command import print_rows
    from q36eval.app.needs import REQUEST, problems_of, rows_of
    from q36eval.run.preflight import RefusedError

    try:
        yield
    except UsageError as error:
        problems = problems_of(error)
        rows = tuple(row for row in rows_of(problems, asked) if row.codes)
        if all(row.what == REQUEST for row in rows):
            raise
        refused = error if isinstance(error, RefusedError) else RefusedError(error.code, str(error))
        refused.problems = problems
        if len(rows) > 1 and not (refused.rows and is_plan):
            print_rows(refused.rows or rows, all_of_it=False, file=sys.stderr)
        refused.rows = refused.rows or rows
        if refused is error:
            raise
        raise refused from error
