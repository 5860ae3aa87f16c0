"""The runs in history that show noise: of the reference against itself, and those that were accepted."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.history import History, RunRecord, RunState
from q36eval.history.deciding import of_cut_short, tasks_cut_short
from q36eval.records import Measurement, ProbeName

RunKind = Literal["reference", "accepted"]


@dataclass(frozen=True)
class NoiseRun:
    """A run, why it counts, and those of its measurements that were asked as in the newest of these runs."""

    run: RunRecord
    kind: RunKind
    measured: Mapping[str, Measurement]

    def holds(self, probe: ProbeName) -> bool:
        """Whether any of its measurements is of that probe."""
        return any(measurement.probe is probe for measurement in self.measured.values())

    def stopped_early(self, key: str) -> bool:
        """Whether a task was asked only until the policy's margin was settled: its bound then lies at that margin."""
        return of_cut_short(self.measured[key], tasks_cut_short(self.measured.values()))


def noise_runs(family: Family, paths: Paths, named: Sequence[str] = ()) -> tuple[tuple[NoiseRun, ...], tuple[str, ...]]:
    """The runs to calibrate a family's policy by, newest first, and what was left out and why.

    Of the reference itself (the same checkpoint on both sides), blessed ones, and those `named`. Runs against another
    reference are left out; so is a probe of a run that asked other items than the newest.

    Raises:
        UsageError: history has no such run, or a named one is not finished or of another family; or there is none at
            all to calibrate by.
    """
    if not paths.has_history:
        raise UsageError(_nothing(family))
    history = History.open(paths.history_url)
    try:
        chosen = sorted(_chosen(family, history, named).values(), key=lambda pair: pair[0].started, reverse=True)
        comparable = [pair for pair in chosen if _checkpoint(pair[0]) == _checkpoint(chosen[0][0])]
        others = [run.id for run, _ in chosen if _checkpoint(run) != _checkpoint(chosen[0][0])]
        notes = [f"run {name}, which was held against another reference" for name in others]
        newest: dict[str, str] = {}
        for run, _ in comparable:
            newest = {**run.suites, **newest}
        found = []
        for run, kind in comparable:
            other = sorted(probe for probe, suite in run.suites.items() if suite != newest[probe])
            notes += (
                [f"{' and '.join(other)} of run {run.id}, which asked other items than a newer run"] if other else []
            )
            measured = {m.key: m for m in history.measurements(run.id) if m.probe.value not in other}
            found += [NoiseRun(run, kind, measured)] if measured else []
        if not found:
            raise UsageError(_nothing(family))
    finally:
        history.close()
    return tuple(found), tuple(notes)


def _nothing(family: Family) -> str:
    return (
        f"History holds no run to calibrate by: gate the reference against itself (q36eval gate --branch "
        f"{family.reference} --family {family.name} --exhaustive), bless a run (q36eval history bless), or name one "
        f"with --run."
    )


def _chosen(family: Family, history: History, named: Sequence[str]) -> dict[str, tuple[RunRecord, RunKind]]:
    """By id; a run that is both of the reference and accepted shows the reference's noise."""
    found: dict[str, tuple[RunRecord, RunKind]] = {}
    runs = history.list_runs(family=family.name, state=RunState.FINISHED)
    for run in [*_named(family, history, named), *_blessed(family, history, runs)]:
        found[run.id] = (run, "accepted")
    for run in runs:
        if run.identity is not None and run.identity.checkpoint_sha256 == _checkpoint(run):
            found[run.id] = (run, "reference")
    return found


def _named(family: Family, history: History, named: Sequence[str]) -> Iterator[RunRecord]:
    for name in named:
        run = history.get_run(name)
        if run.state is not RunState.FINISHED or run.family != family.name:
            raise UsageError(
                f"Run {run.id} is {run.state} and of the family {run.family}; name a finished run of {family.name}."
            )
        yield run


def _blessed(family: Family, history: History, runs: Sequence[RunRecord]) -> Iterator[RunRecord]:
    """The newest blessing of each branch; an older one was replaced."""
    for branch in sorted({run.branch for run in runs}):
        run = history.blessed(branch, family.name)
        if run is not None:
            yield run


def _checkpoint(run: RunRecord) -> str | None:
    """Of the reference that a run was held against."""
    return None if run.reference_identity is None else run.reference_identity.checkpoint_sha256
