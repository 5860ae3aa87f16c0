"""Reads history for the pages, through its public interface only, and keeps what cannot change."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import streamlit as st

from app.kl_figures import divergences_of
from q36eval.config.paths import Paths
from q36eval.gate.report import Waiver
from q36eval.history import Blessing, History, MetricDrift, RunRecord, RunState, drift
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.token_files import TOKENS, WORST, WorstToken, read_worst

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRESH_S = 5
"""What may still change is read again after so many seconds."""

T = TypeVar("T")


def history_path() -> Path:
    """The file named on the command line after `--`, else the working state's own."""
    arguments = sys.argv[1:]
    return Path(arguments[0]) if arguments and not arguments[0].startswith("-") else Paths.default().history


def file_key(path: Path) -> str | None:
    """Names one file, so that a replaced history is opened anew; None when there is none yet."""
    try:
        return f"{path.resolve()}#{path.stat().st_ino}"
    except OSError:
        return None


def moment(run: RunRecord) -> str:
    """Part of a cache key: constant for a finished run, new every few seconds for one that may still grow."""
    return run.state.value if run.state is RunState.FINISHED else f"{run.state}@{time.time() // FRESH_S:.0f}"


class Reader:
    """Reads of one history file. Opening a file that does not exist would make one, so `exists` comes first.

    What is cached is shared between sessions without copies: records are frozen, and lists must be left as they are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.key = file_key(path)

    @property
    def exists(self) -> bool:
        """Whether there is a file to read."""
        return self.key is not None

    def runs(self) -> list[RunRecord]:
        """All runs, newest first."""
        return _runs(self.key, str(self.path)) if self.exists else []

    def measurements(self, run: RunRecord) -> list[Measurement]:
        """Measurements of a run, without the evidence per cluster."""
        return _measurements(self.key, str(self.path), run.id, moment(run))

    def failures(self, run: RunRecord) -> list[ProbeFailure]:
        """Probes of a run that gave no figures."""
        return _failures(self.key, str(self.path), run.id, moment(run))

    def canaries(self, run: RunRecord) -> list[ItemOutcome]:
        """Canary outcomes of a run."""
        return _canaries(self.key, str(self.path), run.id, moment(run))

    def eval_flips(self, run: RunRecord) -> list[ItemOutcome]:
        """Items of the evals that only one deployment answered rightly."""
        return _eval_flips(self.key, str(self.path), run.id, moment(run))

    def tokens_file(self, run: RunRecord) -> Path:
        """Where a run's per-token figures are, if it kept any."""
        return Paths.tokens_beside(self.path, run.id) / TOKENS

    def divergences(self, run: RunRecord) -> "NDArray[np.float64] | None":
        """KL of every token of a run, in nats; None where its tokens are not here."""
        path = self.tokens_file(run)
        return _divergences(str(path), moment(run)) if path.exists() else None

    def worst_tokens(self, run: RunRecord) -> list[WorstToken]:
        """The tokens on which a run's branch diverged most."""
        return read_worst(Paths.tokens_beside(self.path, run.id) / WORST)

    def blessings(self, family: str, branch: str) -> list[Blessing]:
        """Blessings of a branch, newest first."""
        return _blessings(self.key, str(self.path), family, branch)

    def waivers(self, family: str, branch: str) -> dict[int, Waiver]:
        """Waivers of a branch that were not revoked."""
        return _waivers(self.key, str(self.path), family, branch)

    def drift(self, family: str, branch: str, blessed_run_id: str | None) -> list[MetricDrift]:
        """Drift of every metric of a branch."""
        return _drift(self.key, str(self.path), family, branch, blessed_run_id)


def _open(key: str | None, path: str) -> History:
    """One connection pool per file; `key` changes when the file is replaced."""
    del key
    return History.open(path)


def _cached(function: Callable[..., T], ttl: int | None, entries: int) -> Callable[..., T]:
    # copies of thousands of frozen records, which `st.cache_data` makes at every click, cost a second
    cached: Callable[..., T] = st.cache_resource(function, ttl=ttl, max_entries=entries, show_spinner=False)
    return cached


def _read_runs(key: str | None, path: str) -> list[RunRecord]:
    return opened_at(key, path).list_runs()


def _read_measurements(key: str | None, path: str, run_id: str, moment: str) -> list[Measurement]:
    found = opened_at(key, path).measurements(run_id)
    return [measurement.model_copy(update={"clusters": None}) for measurement in found]


def _read_failures(key: str | None, path: str, run_id: str, moment: str) -> list[ProbeFailure]:
    return opened_at(key, path).failures(run_id)


def _read_canaries(key: str | None, path: str, run_id: str, moment: str) -> list[ItemOutcome]:
    return opened_at(key, path).items(run_id, ProbeName.CANARIES)


def _read_eval_flips(key: str | None, path: str, run_id: str, moment: str) -> list[ItemOutcome]:
    return opened_at(key, path).items(run_id, ProbeName.EVALS, flips_only=True)


def _read_divergences(path: str, moment: str) -> "NDArray[np.float64]":
    return divergences_of(Path(path))


def _read_blessings(key: str | None, path: str, family: str, branch: str) -> list[Blessing]:
    return opened_at(key, path).blessings(branch, family)


def _read_waivers(key: str | None, path: str, family: str, branch: str) -> dict[int, Waiver]:
    return opened_at(key, path).waivers(family, branch)


def _read_drift(key: str | None, path: str, family: str, branch: str, blessed: str | None) -> list[MetricDrift]:
    return drift(opened_at(key, path).metric_series(branch, family), blessed)


opened_at: Callable[..., History] = st.cache_resource(_open, max_entries=4, show_spinner=False)
_runs = _cached(_read_runs, FRESH_S, 4)
_measurements = _cached(_read_measurements, None, 32)
_failures = _cached(_read_failures, None, 32)
_canaries = _cached(_read_canaries, None, 8)
_eval_flips = _cached(_read_eval_flips, None, 8)
_divergences = _cached(_read_divergences, None, 4)
_blessings = _cached(_read_blessings, FRESH_S, 64)
_waivers = _cached(_read_waivers, FRESH_S, 64)
_drift = _cached(_read_drift, FRESH_S, 32)
