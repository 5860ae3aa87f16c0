"""Where things are: the repository's data, and the working state beside it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Paths:
    """`repository` holds `data/`; `state` (`$Q36EVAL_STATE`, else `.q36eval` in it) history, captures and locks."""

    repository: Path
    state: Path

    @classmethod
    def default(cls) -> Self:
        """The repository this program runs from."""
        repository = Path(__file__).resolve().parents[2]
        state = os.environ.get("Q36EVAL_STATE")
        return cls(repository, Path(state) if state else repository / ".q36eval")

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
        return self.state / "history.sqlite"

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
