"""Where things are: the repository's data, and the working state beside it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Paths:
    """`repository` holds `data/`; `state` (`$Q36EVAL_STATE`, else `.q36eval` in it) history, captures and locks.

    `named_history` (`$Q36EVAL_HISTORY`) is another database than the state's own: a file, or a URL.
    """

    repository: Path
    state: Path
    named_history: str | None = None

    @classmethod
    def default(cls) -> Self:
        """The repository this program runs from."""
        repository = Path(__file__).resolve().parents[2]
        state = os.environ.get("Q36EVAL_STATE")
        named = os.environ.get("Q36EVAL_HISTORY") or None
        return cls(repository, Path(state) if state else repository / ".q36eval", named)

    @property
    def data(self) -> Path:
        return self.repository / "data"

    @property
    def families(self) -> Path:
        return self.data / "families"

    @property
    def policies(self) -> Path:
        return self.data / "policies"

    @property
    def history(self) -> Path:
        """The state's own history file, whichever is used."""
        return self.state / "history.sqlite"

    @property
    def history_url(self) -> str:
        """The history that is used: a file, or a database URL."""
        return self.named_history or str(self.history)

    @property
    def has_history(self) -> bool:
        """Whether there is one to read; of a database that is no file only opening it tells."""
        if "://" in self.history_url:
            return True
        return Path(self.history_url).exists()

    @property
    def captures(self) -> Path:
        """A reference pack a folder. (`references` beside it, of an older version, is not read.)"""
        return self.state / "packs"

    def run_lock(self, run_id: str) -> Path:
        """Held for as long as that run is being measured."""
        return self.state / "runs" / f"{run_id}.lock"

    def tokens(self, run_id: str) -> Path:
        """The folder of the per-token figures of that run."""
        return self.tokens_beside(self.history, run_id)

    @staticmethod
    def tokens_beside(history: Path, run_id: str) -> Path:
        """The same folder, found from the history file that the run is in."""
        return history.parent / "tokens" / run_id

    @property
    def built(self) -> Path:
        """Branches built on first use."""
        return self.state / "sandbox"
