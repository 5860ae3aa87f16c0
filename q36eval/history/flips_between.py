"""Items that two runs both asked, and that one branch answered rightly and the other not."""

from collections.abc import Container, Iterator
from typing import Literal

from q36eval.history.records import RunRecord
from q36eval.history.store import History
from q36eval.records import Answer, ItemOutcome, ProbeName, Record
from q36eval.stats import mcnemar

ANSWERED = (ProbeName.EVALS, ProbeName.CANARIES)
"""Probes whose items are right or wrong, so that they can flip."""


class BetweenRuns(Record):
    """An item that one of the two branches answered rightly and the other not: `lost` is right in A, `gained` in B."""

    probe: ProbeName
    group: str
    item_key: str
    cluster: str
    way: Literal["lost", "gained"]
    prompt: str | None
    expected: str | None
    a: Answer
    b: Answer


class FlipCounts(Record):
    """Items of one probe that both runs scored, and how many of them flipped which way from A to B.

    `p_value` is McNemar's, exact, for the eye only: it takes items as independent. `only_a` and `only_b` are items that
    the other run did not score.
    """

    probe: ProbeName
    both: int
    lost: int
    gained: int
    p_value: float
    only_a: int
    only_b: int


def flips_between(
    history: History, a: RunRecord, b: RunRecord, apart: Container[ProbeName] = ()
) -> tuple[tuple[FlipCounts, ...], tuple[BetweenRuns, ...]]:
    """The flips from run `a` to run `b`, counted by probe, and one by one in B's order; of probes not `apart`.

    Items pair by probe, group and the hash of what was asked. A flip is as in a run: full marks on one side, fewer on
    the other. What either run did not score says nothing.
    """
    counts, flipped = [], []
    for probe in ANSWERED:
        if probe in apart:
            continue
        one, other = ({_name(o): o for o in history.items(run.id, probe)} for run in (a, b))
        scored = [{name for name, o in of.items() if o.branch.score is not None} for of in (one, other)]
        if not (scored[0] or scored[1]):
            continue
        both = scored[0] & scored[1]
        found = [flip for name, o in other.items() if name in both for flip in _flip(one[name], o)]
        ways = [flip.way for flip in found]
        counts.append(
            FlipCounts(
                probe=probe,
                both=len(both),
                lost=ways.count("lost"),
                gained=ways.count("gained"),
                p_value=mcnemar(ways.count("lost"), ways.count("gained")),
                only_a=len(scored[0]) - len(both),
                only_b=len(scored[1]) - len(both),
            )
        )
        flipped += found
    return tuple(counts), tuple(flipped)


def _name(outcome: ItemOutcome) -> tuple[str, str]:
    return outcome.group, outcome.item_key


def _flip(a: ItemOutcome, b: ItemOutcome) -> Iterator[BetweenRuns]:
    was, now = a.branch.score, b.branch.score
    if was is None or now is None or (was == 1.0) == (now == 1.0):
        return
    if not (0.0 <= was <= 1.0 and 0.0 <= now <= 1.0):
        return
    yield BetweenRuns(
        probe=b.probe,
        group=b.group,
        item_key=b.item_key,
        cluster=b.cluster,
        way="lost" if was == 1.0 else "gained",
        prompt=b.prompt,
        expected=b.expected,
        a=a.branch,
        b=b.branch,
    )
