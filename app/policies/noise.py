"""The noise floor of a family's reference, as history and its captures know it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from q36eval.config import Family, Paths
from q36eval.gate.noise import of_reference_alone
from q36eval.history import History, RunRecord, RunState
from q36eval.records import Measurement, ProbeName


@dataclass(frozen=True)
class KnownFloor:
    """The floor's measurements and where they are from, in words; none where no floor is known."""

    measurements: tuple[Measurement, ...] = ()
    source: str = "no noise floor of the reference is known here: a gate or `q36eval reference capture` measures it"


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
