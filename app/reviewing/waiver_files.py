"""Waivers in a YAML file, reviewed like code: read by `gate --waivers-from`, written by `review list --out`."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from q36eval.app.names import closest
from q36eval.app.targets import kept_name
from q36eval.config import Family
from q36eval.errors import UsageError
from q36eval.files import read_yaml
from q36eval.gate import Waiver
from q36eval.history import WaiverRecord
from q36eval.history.decisions import WaiverSource

LONGEST_DAYS = 366
"""A waiver is a temporary exception: for a permanent one, change the policy."""

HEADER = """\
# Waivers. `q36eval review list --out` writes them; `q36eval gate --waivers-from FILE` reads them: then these alone
# count. Each names owner, reason, the last day it holds, and what it excuses: a criterion, a slice, a canary, or what
# several of them have in common.
"""


class _Entry(BaseModel):
    """One waiver of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str = Field(min_length=1)
    branch: str = Field(pattern=r"^[^\x00]+$")
    criterion: str | None = Field(default=None, min_length=1)
    slice: str | None = Field(default=None, min_length=1)
    canary: str | None = Field(default=None, min_length=1)
    owner: str = Field(min_length=1)
    reason: str = Field(min_length=1)
    expires: date

    @model_validator(mode="after")
    def _says_something(self) -> "_Entry":
        if self.criterion is None and self.slice is None and self.canary is None:
            raise ValueError("a waiver names a criterion, a slice or a canary")
        if not self.owner.strip() or not self.reason.strip():
            raise ValueError("a waiver needs an owner and a reason")
        return self

    def waiver(self) -> Waiver:
        """The waiver in the gate's form."""
        return Waiver.model_validate(self.model_dump(exclude={"family", "branch"}))


class _File(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    waivers: tuple[_Entry, ...] = ()


def read_waivers(file: Path, on: date) -> dict[tuple[str, str], WaiverSource]:
    """The waivers of a file by family and branch, including expired ones, which the report lists.

    A branch's folder may be a relative path, from where the gate runs.

    Raises:
        UsageError: the file is missing or malformed, or one of its waivers lasts longer than a year from the day `on`.
    """
    entries = read_yaml(file, _File, "waiver file").waivers
    sources: dict[tuple[str, str], WaiverSource] = {}
    for place, entry in enumerate(entries):
        if (entry.expires - on).days > LONGEST_DAYS:
            raise UsageError(
                "waiver-too-long",
                f"The waiver file {file} is wrong at waivers.{place}.expires: {too_long(entry.expires)}.",
            )
        key = (entry.family, kept_name(entry.branch))
        before = sources[key].waivers if key in sources else ()
        sources[key] = WaiverSource(str(file), (*before, entry.waiver()))
    return sources


def strangers(
    sources: Mapping[tuple[str, str], WaiverSource], family: Family, requested: Collection[str]
) -> Iterator[str]:
    """A sentence on each unknown branch of a file: its waivers have no effect.

    Known are the family's published branches and those that are `requested`.
    """
    for whose, branch in sources:
        file, known = sources[whose, branch].file, {*family.branches, *requested}
        if whose == family.name and branch not in known:
            yield (
                f"The waiver file {file} names the branch {branch!r} of {whose}, which is neither published nor gated "
                f"here; {closest(branch, known)}."
            )
    if sources and family.name not in {whose for whose, _ in sources}:
        file = next(iter(sources.values())).file
        families = ", ".join(sorted({whose for whose, _ in sources}))
        yield f"The waiver file {file} excuses nothing of the family {family.name}; it names: {families}."


def too_long(expires: date) -> str:
    """Why an expiry is refused."""
    return f"{expires} is further away than a year; a waiver ends, and what shall hold for good belongs in the policy"


def waivers_yaml(records: Iterable[WaiverRecord]) -> str:
    """The waivers of these records as such a file; deterministic."""
    values = ({"family": one.family, "branch": one.branch, **one.waiver.model_dump()} for one in records)
    entries = [{name: of[name] for name in _Entry.model_fields if of[name] is not None} for of in values]
    body = yaml.safe_dump({"waivers": entries}, sort_keys=False, allow_unicode=True, width=100)
    return HEADER + body
