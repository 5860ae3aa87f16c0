"""The files of a suite: its definition, frozen data and corpus; and the items that a run omitted from suites.

The probes are imported on demand: the dashboard and replays of stored runs need no probe.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.config import Paths
from q36eval.errors import UsageError
from q36eval.files import real_path
from q36eval.probes import Probe
from q36eval.records import ProbeName

if TYPE_CHECKING:
    from q36eval.gate.report import Supplies
    from q36eval.run.request import Request

MOST_DRAWS = 1_000
"""The maximum for `gate --draws`."""


@dataclass(frozen=True)
class SuitePlace:
    """A suite's file and frozen data; `corpus` is the folder of its texts, which only shipped suites may have."""

    file: Path
    data: Path
    corpus: Path | None


def suite_place(suite: str, paths: Paths) -> SuitePlace:
    """The place of `NAME`, a shipped suite, or `FILE`, a .yaml file; `=DIR` after it names its frozen folder.

    `standard+release` has the texts and the canaries of the first and the tasks of the second.

    Raises:
        UsageError: the suite does not exist, or its file is malformed.
    """
    first, joined, second = suite.partition("+")
    if joined:
        return replace(suite_place(second, paths), corpus=suite_place(first, paths).corpus)
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


def texts_of(suite: str) -> str:
    """The name of the suite that provides the texts and the canaries."""
    return suite.partition("+")[0].partition("=")[0]


def corpus_beside(data: Path) -> Path:
    """The path of the corpus frozen together with tasks into a custom folder."""
    return data.with_name(f"{data.name}-corpus")


def shipped_suites() -> dict[str, Path]:
    """The files of the shipped suites, by name."""
    from q36eval import evals

    return {path.stem: path for path in sorted((Path(evals.__file__).parent / "suites").glob("*.yaml"))}


def named_canaries(suite: str, paths: Paths) -> str | None:
    """The set of canaries of a suite; None is the Czech and English one.

    Raises:
        UsageError: the suite does not exist, or its file is malformed.
    """
    from q36eval.evals.suite import read_suite

    return read_suite(suite_place(suite.partition("+")[0], paths).file).canaries


def supplies_of(request: "Request", probes: Sequence[Probe], paths: Paths) -> "Supplies":
    """The items that could be evaluated in addition by `probes`: more draws of the canaries."""
    from q36eval.canaries.specification import draws_per_family
    from q36eval.gate.report import Supplies

    asked = any(probe.name is ProbeName.CANARIES for probe in probes)
    draws = request.canaries.draws or draws_per_family(request.suite, named_canaries(request.suite, paths))
    return Supplies(draws=draws if asked else None, most_draws=MOST_DRAWS)
