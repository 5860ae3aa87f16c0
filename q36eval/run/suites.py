"""Where a suite is that a person names: its file, frozen data and corpus; and which items a run left out of suites.

The probes are imported where they are needed: the dashboard and whoever decides a kept run again need no probe.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.files import real_path
from q36eval.probes import Probe
from q36eval.records import ProbeName

if TYPE_CHECKING:
    from q36eval.gate.report import ItemSource, Supplies
    from q36eval.run.request import Request

EVALUATED_SPLITS = ("test", "validation")
"""Which of its splits a task of lm-eval evaluates: the first of these that it has."""

MOST_DRAWS = 1_000
"""Draws of every family that `gate --draws` takes at most."""


@dataclass(frozen=True)
class SuitePlace:
    """A suite's file and frozen data; `corpus` is the folder of the texts it brings, which only shipped suites may."""

    file: Path
    data: Path
    corpus: Path | None


def suite_place(suite: str, paths: Paths) -> SuitePlace:
    """The place of `NAME`, a shipped suite, or `FILE`, a .yaml file; `=DIR` after it names the folder it was frozen to.

    Raises:
        UsageError: no such suite, or a file that is malformed.
    """
    name, given, folder = suite.partition("=")
    if given and not folder:
        raise UsageError(
            "option-value", f"{suite!r} names no folder after the suite; write {name}=DIR, or {name} alone."
        )
    data = real_path(folder) if given else None
    if name.endswith((".yaml", ".yml")):
        from q36eval.evals.suite import read_suite

        file = Path(name)
        return SuitePlace(file, data or real_path(file.parent / read_suite(file).data), None)
    shipped = shipped_suites()
    if name not in shipped:
        known = ", ".join(shipped)
        raise UsageError("suite-unknown", f"There is no suite {name!r}; known suites: {known}, or name a .yaml file.")
    from q36eval.kl.corpus_plan import corpus_name

    own = paths.frozen("corpus", corpus_name(name))
    beside = None if data is None else corpus_beside(data)
    corpus = own if beside is None or not beside.is_dir() else beside
    return SuitePlace(shipped[name], data or paths.frozen("tasks", name), corpus)


def corpus_beside(data: Path) -> Path:
    """Where the corpus lies that was frozen with tasks into a folder of a person's choice."""
    return data.with_name(f"{data.name}-corpus")


def shipped_suites() -> dict[str, Path]:
    """The files of the suites that ship, by name."""
    from q36eval import evals

    return {path.stem: path for path in sorted((Path(evals.__file__).parent / "suites").glob("*.yaml"))}


def supplies_of(request: "Request", probes: Sequence[Probe], paths: Paths) -> "Supplies":
    """What could be evaluated in addition of each of `probes`, which have planned their items."""
    from q36eval.canaries.specification import draws_per_family
    from q36eval.gate.report import Supplies

    sources: list[ItemSource] = []
    draws = None
    for probe in probes:
        if probe.name is ProbeName.CANARIES:
            draws = request.canaries.draws or draws_per_family(request.suite)
        elif probe.name is ProbeName.EVALS:
            sources += [*_left_out(request, probe), *_larger_suites(request, paths)]
    return Supplies(sources=tuple(sources), draws=draws, most_draws=MOST_DRAWS)


def _left_out(request: "Request", probe: Probe) -> "Iterator[ItemSource]":
    """The items that `--max-items` left out."""
    from q36eval.evals.probe import EvalsProbe
    from q36eval.gate.report import ItemSource

    if request.max_items is None or not isinstance(probe, EvalsProbe):
        return
    items = {name: whole for name, (planned, whole) in probe.group_sizes().items() if whole > planned}
    if items:
        yield ItemSource(probe=ProbeName.EVALS, option=f"--suite {request.suite}", items=items, nested=True)


def _larger_suites(request: "Request", paths: Paths) -> "Iterator[ItemSource]":
    """The shipped suites whose data is here, with the items of each group."""
    from q36eval.evals.frozen import MANIFEST, read_manifest
    from q36eval.evals.suite import code_execution_allowed, read_suite
    from q36eval.gate.report import ItemSource

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
            if count and not (group.executes_code and not code_execution_allowed()):
                items[group.slice] = count
        if items:
            yield ItemSource(probe=ProbeName.EVALS, option=f"--suite {name}", items=items)
