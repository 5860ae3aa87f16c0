"""Reads history for the pages, and caches slow reads until the data changes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.launch_options import Started, file_of
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.app.figures.deciding_answers import deciding_items, largest_loss
from q36eval.config.paths import Paths
from q36eval.drift import BranchDrift, MetricDrift
from q36eval.errors import Q36Error
from q36eval.history import History, RunRecord, RunState
from q36eval.history.decisions import report_sha256
from q36eval.history.run_comparison import Comparison, compare
from q36eval.locks import is_held
from q36eval.records import ItemOutcome, Measurement, ProbeName
from q36eval.run.drift import followed, standing_drift
from q36eval.token_files import TOKENS, WORST, WorstToken, read_worst

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRESH_S = 5
"""The evidence of an unfinished run is read again after this many seconds."""

T = TypeVar("T")


@contextmanager
def explained(show: Callable[[str], object] = st.error, heading: str = "The history cannot be read.") -> Iterator[None]:
    """Shows an error in the block as a heading and a sentence. A part that is drawn again alone needs its own."""
    try:
        yield
    except Q36Error as error:
        show(heading)
        st.text(line(str(error)))


def source_key(source: str) -> str | None:
    """Names one database, so that a replaced file is opened again; None if the file does not exist yet."""
    path = file_of(source)
    if path is None:
        return source
    try:
        return f"{path.resolve()}#{path.stat().st_ino}"
    except OSError:
        return None


def _state_of(run: RunRecord) -> str:
    """Part of a cache key: identifies a finished run's content and decision; changes every few seconds otherwise."""
    if run.state is not RunState.FINISHED:
        return f"{run.id} {time.time() // FRESH_S:.0f}"
    return f"{run.id} {'' if run.report is None else report_sha256(run.report)}"


class Reader:
    """Reads of one history. Opening a file that does not exist would make one, so `exists` comes first.

    What is cached is shared between sessions without copies: records are frozen, and lists must be left as they are.
    """

    def __init__(self, source: str | Path) -> None:
        self.source = str(source)
        self.key = source_key(self.source)

    @property
    def exists(self) -> bool:
        """Whether there is a history to read."""
        return self.key is not None

    @property
    def history(self) -> History:
        """The history itself, for quick reads and for writing."""
        return _history(self.key, self.source)

    def measurements(self, run: RunRecord) -> list[Measurement]:
        """Measurements of a run."""
        return self._kept(f"measurements {_state_of(run)}", lambda h: h.measurements(run.id))

    def items(self, run: RunRecord, probe: ProbeName, *, flips_only: bool = False) -> list[ItemOutcome]:
        """Items of one probe in a run, on request only those that flipped."""
        name = f"items {probe} {flips_only} {_state_of(run)}"
        return self._kept(name, lambda h: h.items(run.id, probe, flips_only=flips_only))

    def canary_lanes(self, run: RunRecord) -> CanaryLanes:
        """Which canaries the run's lanes hold, and which required prompts count as flipped."""
        return CanaryLanes.of(self.measurements(run))

    def deciding(self, run: RunRecord) -> tuple[list[ItemOutcome], str]:
        """The items that best show why a run did not pass, and its largest loss."""
        return self._kept(f"deciding {_state_of(run)}", lambda h: (deciding_items(h, run), largest_loss(h, run)))

    def alive(self, run_id: str) -> bool | None:
        """Whether a run's process is alive; None if it is not in this machine's state."""
        locks = [lock for state in self._states() if (lock := state / "runs" / f"{run_id}.lock").exists()]
        return any(map(is_held, locks)) if locks else None

    def tokens_file(self, run: RunRecord) -> Path | None:
        """The path of a run's per-token figures."""
        return self._file(run, TOKENS)

    def divergences(self, run: RunRecord) -> "NDArray[np.float64] | None":
        """KL(p || q) of every token of a run, in nats; None where its tokens are not here."""
        path = self._file(run, TOKENS)
        return None if path is None else self._kept(f"tokens {path} {_state_of(run)}", lambda _: _divergences(path))

    def worst_tokens(self, run: RunRecord) -> list[WorstToken]:
        """The tokens on which a run's branch diverged most."""
        file = self._file(run, WORST)
        return [] if file is None else read_worst(file)

    def drift(self, family: str, branch: str) -> BranchDrift:
        """The drift of a branch, its metrics without points; a second, where history does not keep it."""
        return self._kept(f"drift {self._stand(family, branch)}", lambda h: standing_drift(h, family, branch))

    def followed(self, family: str, branch: str, keys: Sequence[str]) -> list[MetricDrift]:
        """Some metrics of a branch over its runs, and the newest run paired with the blessed one."""
        drift, name = self.drift(family, branch), f"followed {tuple(keys)!r} {self._stand(family, branch)}"
        return self._kept(name, lambda h: followed(h, drift, keys))

    def comparison(self, a: RunRecord, b: RunRecord) -> Comparison:
        """Run `b` compared with run `a`; this takes seconds if they have many items."""
        return self._kept(f"comparison {_state_of(a)} {_state_of(b)}", lambda h: compare(h, a, b))

    def _stand(self, family: str, branch: str) -> str:
        """Names the finished runs, verdicts and blessings of a branch."""
        return f"{family!r} {branch!r} {self.history.fingerprints(family, branch)!r}"

    def _file(self, run: RunRecord, name: str) -> Path | None:
        files = (state / "tokens" / run.id / name for state in self._states())
        return next((path for path in files if path.is_file()), None)

    def _states(self) -> list[Path]:
        """Working states that may hold the runs' files: the history file's own, and this program's."""
        file = file_of(self.source)
        return [*([] if file is None else [file.parent]), Paths.default().state]

    def _kept(self, name: str, read: Callable[[History], T]) -> T:
        """Cached reading; `name` contains all inputs of the read."""
        value: T = _reading(self.key, self.source, name, read)
        return value


def _divergences(path: Path) -> "NDArray[np.float64]":
    import pyarrow.parquet as pq

    column: NDArray[np.float64] = pq.read_table(path, columns=["forward_kl"])["forward_kl"].to_numpy()
    return column.astype("float64")


def _open(key: str | None, source: str) -> History:
    """One connection pool per database; `key` changes when a file is replaced."""
    del key
    return History.open(source, upgrade=not Started.of().read_only)


def _read(key: str | None, source: str, name: str, _read: Callable[[History], Any]) -> Any:
    del name
    return _read(_history(key, source))


_history: Callable[..., History] = st.cache_resource(_open, max_entries=4, show_spinner=False)
# copies of thousands of frozen records, which `st.cache_data` makes at every click, cost a second
_reading: Callable[..., Any] = st.cache_resource(_read, max_entries=16, show_spinner=False)
