"""Where things are: the data that ship with the program, and the working state."""

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, Self

from q36eval.config.project import Project
from q36eval.errors import UsageError

STATE = "Q36EVAL_STATE"
"""The environment variable that names the state folder; `--state` sets it for one command."""

HISTORY = "Q36EVAL_HISTORY"
"""The environment variable that names another history; `--history` sets it for one command."""

LOCAL_STATE = ".q36eval"
"""Where none is named, a state folder of this name in the current folder is used."""


@dataclass(frozen=True)
class Paths:
    """`repository` is the folder of `data/`: a checkout, or the installed package. `state` holds history and captures.

    `named_history` (`$Q36EVAL_HISTORY`, else the project file's) is another database than the state's own: a file, or
    a URL.
    `state_because` says for people why the state lies there.
    """

    repository: Path
    state: Path
    named_history: str | None = None
    state_because: str = ""

    @classmethod
    def default(cls) -> Self:
        """The data of this program, and the state: `$Q36EVAL_STATE`, else `./.q36eval` where there is one.

        Else `.q36eval` in the checkout that the program runs from; of an installed program, the user's data folder.

        Raises:
            UsageError: the data are not there, `./.q36eval` belongs to another user, or the project file is malformed.
        """
        data = Path(str(files("q36eval") / "data")).resolve()  # a link in a checkout
        if not (data / "policies").is_dir():
            raise UsageError(
                "installation-incomplete",
                f"The policies, families and suites of q36eval are missing from {data}: install q36eval again.",
            )
        state, because = _state(data.parent)
        return cls(data.parent, state, os.environ.get(HISTORY) or Project.here().history, because)

    @property
    def is_checkout(self) -> bool:
        """Whether the program runs from its own repository, and not from an installed package."""
        return (self.repository / "pyproject.toml").is_file()

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
    def sandbox(self) -> Path:
        """The sandbox's branches as committed; an installed program fetches them (`q36eval sandbox build`)."""
        return self.data / "sandbox" if self.is_checkout else self.state / "sandbox" / "fetched"

    def frozen(self, kind: Literal["tasks", "corpus"], name: str) -> Path:
        """The frozen data of a suite: those that ship, else where `q36eval data freeze` writes them."""
        shipped = self.data / kind / name
        return shipped if self.is_checkout or shipped.is_dir() else self.state / "frozen" / kind / name

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
        url = self.history_url
        if url.startswith("sqlite:"):
            url = url.partition("///")[2].partition("?")[0]
        return "://" in url or Path(url).exists()

    @property
    def captures(self) -> Path:
        """A reference pack a folder. (`references` beside it, of an older version, is not read.)"""
        return self.state / "packs"

    @property
    def fetched_packs(self) -> Path:
        """Packs that were fetched from an address, by their content."""
        return self.state / "fetched-packs"

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


def _state(repository: Path) -> tuple[Path, str]:
    """The state folder, and why that one."""
    if named := os.environ.get(STATE):
        return Path(named).expanduser(), f"named by {STATE}"
    if Path(LOCAL_STATE).is_dir():
        local = Path.cwd() / LOCAL_STATE
        if hasattr(os, "getuid") and local.stat().st_uid != os.getuid():
            raise UsageError(
                "state-of-another-user",
                f"The state folder {local} belongs to another user, as do the runs and decisions in it; to use it all "
                f"the same name it: --state {LOCAL_STATE}.",
            )
        return local, "it is in the current folder"
    if (repository / "pyproject.toml").is_file():
        return repository / LOCAL_STATE, "the program runs from this checkout"
    import platformdirs  # only an installed program needs it

    return Path(platformdirs.user_data_dir("q36eval", appauthor=False)), "it is this user's data folder"
