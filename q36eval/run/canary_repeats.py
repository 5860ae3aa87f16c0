"""The same canaries measured several times, and at other batch sizes: does everything come out alike?

Every measurement is a run of its own in history.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from q36eval.canaries.must_pass import Standing, standing
from q36eval.config import Paths
from q36eval.history import History, RunRecord
from q36eval.probes import Progress
from q36eval.records import ItemOutcome, ProbeName
from q36eval.run.measure import measure
from q36eval.run.request import Request


@dataclass(frozen=True)
class Repeat:
    """One measurement of the suite: the size of its batches (None: the engine's own), its run, and what came out."""

    rows: int | None
    run_id: str
    items: tuple[ItemOutcome, ...]


@dataclass(frozen=True)
class Differing:
    """One question that did not come out alike: the branch's scores and a must-pass prompt's standings, by run."""

    name: str
    must_pass: bool
    scores: tuple[float | None, ...]
    standings: tuple[Standing, ...]


@dataclass(frozen=True)
class Agreement:
    """How far several runs agree. `passed[canary][run]` counts the branch's right answers."""

    runs: int
    questions: int
    differing: tuple[Differing, ...]
    passed: dict[str, tuple[int, ...]]
    texts_differ: int
    """Questions whose text differs between runs, though perhaps not its outcome."""

    @property
    def must_pass_agree(self) -> bool:
        """Whether every must-pass prompt came out the same way in every run."""
        return not any(one.must_pass and len(set(one.standings)) > 1 for one in self.differing)

    @property
    def rates_agree(self) -> bool:
        """Whether every canary's pass rate is the same in every run."""
        return all(len(set(counts)) == 1 for counts in self.passed.values())


def measure_repeatedly(
    request: Request, times: int, batch_rows: Sequence[int], paths: Paths, history: History, progress: Progress
) -> tuple[list[Repeat], list[RunRecord]]:
    """Measure `times` times as the engine batches, then once with each of `batch_rows` answers together."""
    repeats, runs = [], []
    for rows in [*[request.engine.batch_rows] * times, *batch_rows]:
        run = measure(replace(request, engine=replace(request.engine, batch_rows=rows)), paths, history, progress)
        runs.append(run)
        repeats.append(Repeat(rows, run.id, tuple(history.items(run.id, ProbeName.CANARIES))))
    return repeats, runs


def agreement(repeats: Sequence[Repeat]) -> Agreement:
    """Compare the runs question by question; a question that a run lacks differs."""
    by_key: list[dict[str, ItemOutcome]] = [{item.item_key: item for item in repeat.items} for repeat in repeats]
    keys = {key: item for items in by_key for key, item in items.items()}
    differing, texts = [], 0
    for key, item in keys.items():
        outcomes = [items.get(key) for items in by_key]
        scores = tuple(None if one is None else one.branch.score for one in outcomes)
        standings: tuple[Standing, ...] = ()
        if item.must_pass:
            standings = tuple(Standing.UNKNOWN if one is None else standing(one) for one in outcomes)
        if len(set(scores)) > 1 or len(set(standings)) > 1 or Standing.UNSTABLE in standings:
            differing.append(Differing(item.cluster, item.must_pass, scores, standings))
        texts += len({None if one is None else one.branch.text for one in outcomes}) > 1
    counts = [Counter(item.group for item in repeat.items if item.branch.score == 1.0) for repeat in repeats]
    groups = sorted({item.group for item in keys.values()})
    passed = {group: tuple(count[group] for count in counts) for group in groups}
    order = sorted(differing, key=lambda one: (not one.must_pass, one.name))
    return Agreement(len(repeats), len(keys), tuple(order), passed, texts)
