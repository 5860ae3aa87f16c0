"""Reads history for the pages, through its public interface only, and keeps what cannot change."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st

from q36eval.app.dashboard.drawing.kl_charts import divergences_of
from q36eval.app.dashboard.launch_options import Started, file_of, shown_source
from q36eval.app.figures.canary_lanes import CanaryLanes
from q36eval.app.figures.deciding_answers import deciding_items
from q36eval.app.standing import Rules, shipped_rules
from q36eval.config.paths import Paths
from q36eval.drift import BranchDrift, MetricDrift
from q36eval.gate.report import SignOff, Waiver
from q36eval.history import (
    Blessing,
    BranchKey,
    BranchSummary,
    Decision,
    History,
    RunEvent,
    RunFilter,
    RunProgress,
    RunRecord,
    RunState,
    RunSummary,
    StandingVerdict,
    WaiverRecord,
)
from q36eval.history.decisions import report_sha256
from q36eval.history.run_comparison import Comparison, compare
from q36eval.locks import is_held
from q36eval.records import ItemOutcome, Measurement, ProbeFailure, ProbeName
from q36eval.run.drift import followed, standing_drift
from q36eval.token_files import TOKENS, WORST, WorstToken, read_worst

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FRESH_S = 5
"""What may still change is read again after so many seconds."""
SLOW_S = 60
"""The same, for what takes long to read and is known to change with a branch's runs."""

T = TypeVar("T")


def source_key(source: str) -> str | None:
    """Names one database, so that a replaced file is opened anew; None when there is no such file yet."""
    path = file_of(source)
    if path is None:
        return source
    try:
        return f"{path.resolve()}#{path.stat().st_ino}"
    except OSError:
        return None


def moment(run: RunRecord) -> str:
    """Part of a cache key: constant for a finished run, new every few seconds for one that may still grow."""
    return run.state.value if run.state is RunState.FINISHED else f"{run.state}@{time.time() // FRESH_S:.0f}"


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
    def gone(self) -> bool:
        """Whether there was a history when these pages were first drawn, and is none now."""
        seen = _seen()
        if self.exists:
            seen.add(self.source)
        return not self.exists and self.source in seen

    @property
    def shown(self) -> str:
        """Where it is read from, in words that tell no password."""
        return shown_source(self.source)

    @property
    def history(self) -> History:
        """The history itself, for what is not worth keeping and for writing."""
        return _history(self.key, self.source)

    def branches(self) -> list[BranchSummary]:
        """Every branch that has a run, the one with the newest run first."""
        return self._fresh(lambda h: h.branches(), "branches") if self.exists else []

    def standing_verdicts(self) -> dict[BranchKey, list[StandingVerdict]]:
        """Of every branch the verdicts that may say how it stands, the newest first."""
        return self._fresh(lambda h: h.standing_verdicts(), "standing verdicts") if self.exists else {}

    def shipped_rules(self, family: str) -> Rules | None:
        """What the file of the family of that name says, of those that ship."""
        rules: Rules | None = _rules(family)
        return rules

    def summaries(
        self, wanted: RunFilter | None = None, *, limit: int | None = None, offset: int = 0
    ) -> list[RunSummary]:
        """Runs as lines, newest first; of those, `limit` from `offset` on."""
        name = f"summaries {wanted!r} {limit} {offset}"
        return self._fresh(lambda h: h.summaries(wanted, limit=limit, offset=offset), name)

    def count_runs(self, wanted: RunFilter | None = None) -> int:
        """How many runs there are of that kind."""
        return self._fresh(lambda h: h.count_runs(wanted), f"count {wanted!r}")

    def run(self, run_id: str) -> RunRecord:
        """One run by its id or a unique prefix, or `latest`.

        Raises:
            UsageError: no such run, or several.
        """
        return self._fresh(lambda h: h.get_run(run_id), f"run {run_id}")

    def runs_of(self, family: str, branch: str, limit: int) -> list[RunRecord]:
        """The newest runs of a branch in full, newest first; a run in full is a hundred times its summary."""
        summaries = self.summaries(RunFilter(family=family, branch=branch), limit=limit)
        return [self.run(summary.id) for summary in summaries]

    def measurements(self, run: RunRecord) -> list[Measurement]:
        """Measurements of a run, without the evidence per cluster."""
        return _measurements(self.key, self.source, run.id, moment(run))

    def groups(self, run: RunRecord, probe: ProbeName) -> list[str]:
        """The canaries or tasks that were asked in a run, sorted."""
        return self._fresh(lambda h: h.groups(run.id, probe), f"groups {run.id} {probe}")

    def failures(self, run: RunRecord) -> list[ProbeFailure]:
        """Probes of a run that gave no figures."""
        return _failures(self.key, self.source, run.id, moment(run))

    def canaries(self, run: RunRecord) -> list[ItemOutcome]:
        """Canary outcomes of a run."""
        return _canaries(self.key, self.source, run.id, moment(run))

    def canary_lanes(self, run: RunRecord) -> CanaryLanes:
        """Which canaries the run's lanes hold, and which required prompts count as flipped."""
        return _canary_lanes(self.key, self.source, run.id, moment(run))

    def deciding(self, run: RunRecord) -> list[ItemOutcome]:
        """The items that show best why a run did not pass, whole."""
        return _deciding(self.key, self.source, run.id, f"{moment(run)} {_decided(run)}")

    def progress(self, run_id: str) -> RunProgress | None:
        """How far a run is, as it last said; never kept."""
        return self.history.progress(run_id)

    def alive(self, run_id: str) -> bool | None:
        """Whether the process that measures a run lives; None where it is not of this machine's state."""
        locks = [lock for state in self._states() if (lock := state / "runs" / f"{run_id}.lock").exists()]
        return any(map(is_held, locks)) if locks else None

    def events(self, run_id: str) -> list[RunEvent]:
        """What happened to a run, in that order."""
        return self._fresh(lambda h: h.events(run_id), f"events {run_id}")

    def signatures(self, run_id: str) -> list[SignOff]:
        """All signatures under a run, whichever of its reports they are of."""
        return self._fresh(lambda h: h.sign_offs(run_id), f"sign-offs {run_id}")

    def earlier_decisions(self, run_id: str) -> list[Decision]:
        """The decisions over a run that later ones replaced, oldest first."""
        return self._fresh(lambda h: h.earlier_decisions(run_id), f"earlier {run_id}")

    def tokens_file(self, run: RunRecord) -> Path:
        """Where a run's per-token figures are, if it kept any."""
        return self._file(run, TOKENS) or self._states()[0] / "tokens" / run.id / TOKENS

    def _file(self, run: RunRecord, name: str) -> Path | None:
        files = (state / "tokens" / run.id / name for state in self._states())
        return next((path for path in files if path.is_file()), None)

    def _states(self) -> list[Path]:
        """Working states that may hold the files of its runs: that of its file, and this program's own."""
        file = file_of(self.source)
        return [*([] if file is None else [file.parent]), Paths.default().state]

    def divergences(self, run: RunRecord) -> "NDArray[np.float64] | None":
        """KL of every token of a run, in nats; None where its tokens are not here."""
        path = self.tokens_file(run)
        return _divergences(str(path), moment(run)) if path.exists() else None

    def worst_tokens(self, run: RunRecord) -> list[WorstToken]:
        """The tokens on which a run's branch diverged most."""
        file = self._file(run, WORST)
        return [] if file is None else read_worst(file)

    def blessings(self, family: str, branch: str) -> list[Blessing]:
        """Blessings of a branch, newest first."""
        return self._fresh(lambda h: h.blessings(branch, family), f"blessings {family!r} {branch!r}")

    def waivers(self, family: str, branch: str) -> dict[int, Waiver]:
        """Waivers of a branch that were not revoked."""
        return self._fresh(lambda h: h.waivers(family, branch), f"waivers {family!r} {branch!r}")

    def waiver_records(self) -> list[WaiverRecord]:
        """Every waiver ever written, oldest first."""
        return self._fresh(lambda h: h.waiver_records(), "waivers") if self.exists else []

    def drift(self, family: str, branch: str) -> BranchDrift:
        """The drift of a branch, its metrics without points."""
        return self._of_branch(family, branch, lambda h: standing_drift(h, family, branch), "drift")

    def followed(self, family: str, branch: str, keys: Sequence[str]) -> list[MetricDrift]:
        """Some metrics of a branch over its runs, and the newest run paired with the blessed one."""
        drift = self.drift(family, branch)
        return self._of_branch(family, branch, lambda h: followed(h, drift, keys), f"followed {tuple(keys)!r}")

    def metric_keys(self, family: str, branch: str) -> list[str]:
        """Keys of all that finished runs of a branch measured, sorted."""
        return self._fresh(lambda h: h.metric_keys(branch, family), f"keys {family!r} {branch!r}")

    def figures(self, family: str, branch: str, key: str, runs: int) -> dict[str, float]:
        """One metric's figure in that many newest finished runs of a branch, by the run's id."""

        def read(history: History) -> dict[str, float]:
            return {one.run.id: one.value for one in history.metric_series(branch, family, [key], newest=runs)}

        return self._of_branch(family, branch, read, f"figures {key!r} {runs}")

    def _of_branch(self, family: str, branch: str, read: Callable[[History], T], name: str) -> T:
        """Read again once the branch has other finished runs, verdicts or blessings, and every minute."""
        stand = self._fresh(lambda h: h.fingerprints(family, branch), f"stand {family!r} {branch!r}")
        value: T = _slow(self.key, self.source, f"{family!r} {branch!r} {name} {stand!r}", read)
        return value

    def comparison(self, a: RunRecord, b: RunRecord) -> Comparison:
        """Run `b` held against run `a`; seconds, for what asked many items."""
        moments = f"{moment(a)} {_decided(a)} {moment(b)} {_decided(b)}"
        comparison: Comparison = _comparison(self.key, self.source, a.id, b.id, moments)
        return comparison

    def _fresh(self, read: Callable[[History], T], name: str) -> T:
        """Read at most every few seconds; `name` says all that the reading hangs on."""
        value: T = _recent(self.key, self.source, name, read)
        return value


def forget() -> None:
    """Read again what people write: somebody just did."""
    _recent.clear()


def _no_source() -> set[str]:
    return set()


_seen: Callable[[], set[str]] = st.cache_resource(_no_source, show_spinner=False)
"""The histories that this server has found."""


def _open(key: str | None, source: str) -> History:
    """One connection pool per database; `key` changes when a file is replaced."""
    del key
    return History.open(source, upgrade=not Started.of().read_only)


def _cached(function: Callable[..., Any], ttl: int | None, entries: int) -> Any:
    # copies of thousands of frozen records, which `st.cache_data` makes at every click, cost a second
    return st.cache_resource(function, ttl=ttl, max_entries=entries, show_spinner=False)


def _read_recent(key: str | None, source: str, name: str, _read: Callable[[History], Any]) -> Any:
    return _read(_history(key, source))


def _read_slow(key: str | None, source: str, name: str, _read: Callable[[History], Any]) -> Any:
    return _read(_history(key, source))  # a function of its own: Streamlit has one cache for each


def _read_measurements(key: str | None, source: str, run_id: str, moment: str) -> list[Measurement]:
    measurements = _history(key, source).measurements(run_id)
    return [measurement.model_copy(update={"clusters": None}) for measurement in measurements]


def _read_failures(key: str | None, source: str, run_id: str, moment: str) -> list[ProbeFailure]:
    return _history(key, source).failures(run_id)


def _read_canaries(key: str | None, source: str, run_id: str, moment: str) -> list[ItemOutcome]:
    return _history(key, source).items(run_id, ProbeName.CANARIES)


def _read_canary_lanes(key: str | None, source: str, run_id: str, moment: str) -> CanaryLanes:
    return CanaryLanes.of(_history(key, source).measurements(run_id))


def _read_deciding(key: str | None, source: str, run_id: str, moment: str) -> list[ItemOutcome]:
    history = _history(key, source)
    return deciding_items(history, history.get_run(run_id))


def _decided(run: RunRecord) -> str:
    """A finished run may be decided again: then its criteria are others."""
    return "" if run.report is None else report_sha256(run.report)


def _read_comparison(key: str | None, source: str, a: str, b: str, moments: str) -> Comparison:
    history = _history(key, source)
    return compare(history, history.get_run(a), history.get_run(b))


def _read_divergences(path: str, moment: str) -> "NDArray[np.float64]":
    return divergences_of(Path(path))


_history: Callable[..., History] = st.cache_resource(_open, max_entries=4, show_spinner=False)
_recent = _cached(_read_recent, FRESH_S, 512)
_slow = _cached(_read_slow, SLOW_S, 256)
_measurements: Callable[..., list[Measurement]] = _cached(_read_measurements, None, 32)
_failures: Callable[..., list[ProbeFailure]] = _cached(_read_failures, None, 32)
_canary_lanes: Callable[..., CanaryLanes] = _cached(_read_canary_lanes, None, 64)
_deciding: Callable[..., list[ItemOutcome]] = _cached(_read_deciding, None, 32)
_canaries: Callable[..., list[ItemOutcome]] = _cached(_read_canaries, None, 8)
_comparison: Callable[..., Comparison] = _cached(_read_comparison, None, 4)
_divergences: "Callable[..., NDArray[np.float64]]" = _cached(_read_divergences, None, 4)


_rules = _cached(shipped_rules, FRESH_S, 64)
