"""Which runs are kept: what a person asks for, in options or in a file."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from q36eval.config import load_yaml
from q36eval.errors import UsageError
from q36eval.history import History, RunSummary
from q36eval.history.referring import reviewed_runs


class Retention(BaseModel):
    """A run stays while any of these keeps it: it is among the newest of its branch, or younger than so many days.

    Whatever is asked for, a run stays that was ever blessed or signed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_newest: int | None = Field(default=None, ge=1)
    keep_days: int | None = Field(default=None, ge=1, le=36_500)

    @classmethod
    def of(cls, file: Path | None, keep_newest: int | None, keep_days: int | None) -> "Retention":
        """What the file says; what an option says goes before it.

        Raises:
            UsageError: the file is missing or malformed, or nothing is said at all.
        """
        said = cls() if file is None else load_yaml(file, cls, "retention file")
        given = {"keep_newest": keep_newest, "keep_days": keep_days}
        found = said.model_copy(update={name: value for name, value in given.items() if value is not None})
        if found == cls():
            raise UsageError(
                "Say which runs stay: --keep-newest N of each branch, --keep-days D, or --retention FILE with them."
            )
        return found


def outdated(history: History, retention: Retention, now: datetime) -> Iterator[RunSummary]:
    """The runs that nothing keeps, oldest first."""
    cared_for = reviewed_runs(history)
    young = None if retention.keep_days is None else now - timedelta(days=retention.keep_days)
    ranks: dict[tuple[str, str], int] = {}
    found = []
    for run in history.summaries():  # newest first
        place = (run.family, run.branch)
        ranks[place] = ranks.get(place, 0) + 1
        is_new = retention.keep_newest is not None and ranks[place] <= retention.keep_newest
        is_young = young is not None and run.started >= young
        if not (is_new or is_young or run.id in cared_for):
            found.append(run)
    yield from reversed(found)
