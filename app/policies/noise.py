"""Noise that history knows: the reference against itself, accepted runs, and the noise floors of the reference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from q36eval.config import Family, Paths
from q36eval.errors import UsageError
from q36eval.gate.noise import of_reference_alone
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
        """Whether a task was evaluated only until the margin was resolved: its bound then lies at that margin."""
        return of_cut_short(self.measured[key], tasks_cut_short(self.measured.values()))


def noise_runs(family: Family, paths: Paths, named: Sequence[str] = ()) -> tuple[tuple[NoiseRun, ...], tuple[str, ...]]:
    """The runs to calibrate a family's policy by, newest first, and what was left out and why.

    Of the reference itself (the same checkpoint on both sides), blessed ones, and those `named`. Runs against another
    reference are left out; so is a probe of a run that evaluated other items than the newest.

    Raises:
        UsageError: history has no such run, or a named one is not finished or of another family; or there is none at
            all to calibrate by.
    """
    if not paths.has_history:
        raise UsageError("noise-not-measured", _nothing(family))
    history = History.open(paths.history_url)
    try:
        chosen = sorted(_chosen(family, history, named).values(), key=lambda pair: pair[0].started, reverse=True)
        comparable = [pair for pair in chosen if _checkpoint(pair[0]) == _checkpoint(chosen[0][0])]
        others = [run.id for run, _ in chosen if _checkpoint(run) != _checkpoint(chosen[0][0])]
        notes = [f"run {name}, which was held against another reference" for name in others]
        newest: dict[str, str] = {}
        for run, _ in comparable:
            newest = {**run.suites, **newest}
        runs = []
        for run, kind in comparable:
            other = sorted(probe for probe, suite in run.suites.items() if suite != newest[probe])
            notes += (
                [f"{' and '.join(other)} of run {run.id}, which evaluated other items than a newer run"]
                if other
                else []
            )
            measured = {m.key: m for m in history.measurements(run.id) if m.probe.value not in other}
            runs += [NoiseRun(run, kind, measured)] if measured else []
        if not runs:
            raise UsageError("noise-not-measured", _nothing(family))
    finally:
        history.close()
    return tuple(runs), tuple(notes)


def _nothing(family: Family) -> str:
    return (
        f"History holds no run to calibrate by: gate the reference against itself (q36eval gate --branch "
        f"{family.reference} --family {family.name} --exhaustive), bless a run (q36eval history bless), or name one "
        f"with --run."
    )


def _chosen(family: Family, history: History, named: Sequence[str]) -> dict[str, tuple[RunRecord, RunKind]]:
    """By id; a run that is both of the reference and accepted shows the reference's noise."""
    chosen: dict[str, tuple[RunRecord, RunKind]] = {}
    runs = history.list_runs(family=family.name, state=RunState.FINISHED)
    for run in [*_named(family, history, named), *_blessed(family, history, runs)]:
        chosen[run.id] = (run, "accepted")
    for run in runs:
        if run.identity is not None and run.identity.checkpoint_sha256 == _checkpoint(run):
            chosen[run.id] = (run, "reference")
    return chosen


def _named(family: Family, history: History, named: Sequence[str]) -> Iterator[RunRecord]:
    for name in named:
        run = history.get_run(name)
        if run.state is not RunState.FINISHED or run.family != family.name:
            raise UsageError(
                "run-unsuitable",
                f"Run {run.id} is {run.state} and of the family {run.family}; name a finished run of {family.name}.",
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


@dataclass(frozen=True)
class KnownFloor:
    """The floor's measurements and where they are from, in words; none where no floor is known."""

    measurements: tuple[Measurement, ...] = ()
    source: str = "no noise floor of the reference is known here: a gate or `q36eval reference floor` measures it"


def known_floor(family: Family, paths: Paths) -> KnownFloor:
    """The floor that the newest finished run of the family was held against.

    History is only read, and not made where there is none.

    Raises:
        UsageError: history, or a kept floor, is damaged.
    """
    if not paths.has_history:
        return KnownFloor()
    history = History.open(paths.history_url)
    try:
        for run in history.list_runs(family=family.name, state=RunState.FINISHED):
            floor = _floor_of_run(run, history.measurements(run.id), paths)
            if floor is not None:
                return floor
    finally:
        history.close()
    return KnownFloor()


def floor_among(runs: Sequence[NoiseRun], paths: Paths) -> KnownFloor | None:
    """The floor of the newest of these runs that has one of what it measured; None where none has."""
    floors = (_floor_of_run(each.run, list(each.measured.values()), paths) for each in runs if each.holds(ProbeName.KL))
    return next((floor for floor in floors if floor is not None), None)


def _floor_of_run(run: RunRecord, measurements: Sequence[Measurement], paths: Paths) -> KnownFloor | None:
    """The floor that a run holds, and the one that is kept of its reference on the same texts."""
    # the floor of what serving adds is of two engines, and stands in runs without any of the reference's
    written = [m for m in measurements if m.probe is ProbeName.KL and of_reference_alone(m.probe, m.metric)]
    kept = _kept(run, paths)
    if not written and not kept:
        return None
    where = [f"run {run.id}"] if written else []
    where += [f"the floor kept for its reference ({kept[0].name})"] if kept else []
    return KnownFloor((*written, *_figures(kept)), " and ".join(where))


def _kept(run: RunRecord, paths: Paths) -> list[Path]:
    from q36eval.kl.floor_file import floor_path

    suite = run.suites.get(ProbeName.KL.value)
    if run.reference_identity is None or suite is None:
        return []
    name = floor_path(paths.captures, run.reference_identity, suite).name
    return sorted(paths.captures.glob(f"*/{name}"))


def _figures(files: Sequence[Path]) -> list[Measurement]:
    from q36eval.kl.floor_file import load_floor, measurements

    floors = [load_floor(file) for file in files]
    return [measurement for floor in floors if floor is not None for measurement in measurements(floor)]
