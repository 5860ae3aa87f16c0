"""The command line with which `q36eval ui` started the dashboard: `main.py [HISTORY] [--read-only] [--local]`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from q36eval.config.paths import Paths

READ_ONLY = "--read-only"
LOCAL = "--local"
_SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Started:
    """`source` is the history's file or database URL. `read_only` lets nobody write.

    `local` means that only requests of this machine are expected. Otherwise only people who have logged in may write.
    """

    source: str
    read_only: bool = False
    local: bool = False

    @classmethod
    def of(cls, arguments: Sequence[str] | None = None) -> "Started":
        """From the arguments after `--`; without a history among them, the working state's own."""
        given = sys.argv[1:] if arguments is None else arguments
        named = next((argument for argument in given if not argument.startswith("-")), None)
        return cls(named or Paths.default().history_url, READ_ONLY in given, LOCAL in given)


def file_of(source: str) -> Path | None:
    """The SQLite file that a history is; None of a database server."""
    if source.startswith(_SQLITE):
        return Path(source.removeprefix(_SQLITE))
    return None if "://" in source else Path(source)


def shown_source(source: str) -> str:
    """A file's path; for a server its kind, host and database, without the login."""
    path = file_of(source)
    if path is not None:
        return str(path)
    parts = urlsplit(source)
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or 'localhost'}{parts.path}"
