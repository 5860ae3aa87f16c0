"""Checkpoints of the Hugging Face hub: how one is named, and where its files are on this machine."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from q36eval.errors import UsageError

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([^@:\s]+))?(?::([^@:\s]+))?")


@dataclass(frozen=True)
class HubName:
    """`ORG/NAME[@REVISION][:FILE]`."""

    repository: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The name that a text spells; None where it spells none."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(*match.groups())

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return self.repository + revision + ("" if self.file is None else f":{self.file}")


@dataclass(frozen=True)
class Snapshot:
    """The files of one commit: a folder, or a GGUF file."""

    place: Path
    repository: str
    revision: str
    commit: str


def fetch(name: HubName, notify: Callable[[str], None]) -> Snapshot:
    """The snapshot of that name, downloaded where it is not in the cache.

    Raises:
        UsageError: it cannot be had.
    """
    raise UsageError("hub-unavailable", f"{name} cannot be downloaded by this version.")


def located(name: HubName) -> Snapshot | None:
    """The snapshot in the cache alone; None where it is not complete there."""
    return None
