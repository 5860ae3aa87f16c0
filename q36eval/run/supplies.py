"""What a gate could evaluate beyond what it did: a suite's other items, larger suites frozen here, more draws."""

from collections.abc import Iterator, Sequence

from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.evals.frozen import MANIFEST, read_manifest
from q36eval.evals.suite import read_suite
from q36eval.gate.report import ItemSource, Supplies
from q36eval.probes import Probe
from q36eval.records import ProbeName
from q36eval.run.request import Request
from q36eval.run.suites import shipped_suites, suite_place

EVALUATED_SPLITS = ("test", "validation")
"""Which of its splits a task of lm-eval evaluates: the first of these that it has."""

MOST_DRAWS = 1_000
"""Draws of every family that `gate --draws` takes at most."""


def supplies_of(request: Request, probes: Sequence[Probe], paths: Paths) -> Supplies:
    """What could be evaluated in addition of each of `probes`, which have planned their items."""
    from q36eval.canaries.specification import draws_per_family

    sources: list[ItemSource] = []
    draws = None
    for probe in probes:
        if probe.name is ProbeName.CANARIES:
            draws = request.canaries.draws or draws_per_family(request.suite)
        elif probe.name is ProbeName.EVALS:
            sources += [*_left_out(request, probe), *_larger_suites(request, paths)]
    return Supplies(sources=tuple(sources), draws=draws, most_draws=MOST_DRAWS)


def _left_out(request: Request, probe: Probe) -> Iterator[ItemSource]:
    """The items that `--max-items` left out."""
    from q36eval.evals.probe import EvalsProbe

    if request.max_items is None or not isinstance(probe, EvalsProbe):
        return
    items = {name: whole for name, (planned, whole) in probe.group_sizes().items() if whole > planned}
    if items:
        yield ItemSource(probe=ProbeName.EVALS, option=f"--suite {request.suite}", items=items, nested=True)


def _larger_suites(request: Request, paths: Paths) -> Iterator[ItemSource]:
    """The shipped suites whose data is here, with the items of each group."""
    for name, file in shipped_suites().items():
        data = suite_place(name, paths).data
        if name == request.suite.partition("=")[0] or not (data / MANIFEST).exists():
            continue
        try:
            suite, manifest = read_suite(file), read_manifest(data)
        except UsageError:  # what cannot be read cannot be offered
            continue
        items = {}
        for group in suite.groups:
            splits = [task.data for task in manifest.tasks.get(group.name, ())]
            evaluated = [next((of[split] for split in EVALUATED_SPLITS if split in of), ()) for of in splits]
            count = sum(manifest.files[path].lines for paths_of in evaluated for path in paths_of)
            if count and not (group.executes_code and not request.allow_code_execution):
                items[group.slice] = count
        if items:
            yield ItemSource(probe=ProbeName.EVALS, option=f"--suite {name}", items=items)
