"""Decisions from the p-values of several criteria: Holm's correction, and early resolution."""

import math
from collections.abc import Sequence
from typing import Literal, Protocol

Resolution = Literal["pass", "fail", "open"]


class PValues(Protocol):
    """The result of a margin test: a `MarginTest`, or a criterion's result."""

    @property
    def p_pass(self) -> float: ...

    @property
    def p_fail(self) -> float: ...


def resolved_early(test: PValues, confidence: float, alpha: float, criteria: int) -> Resolution:
    """Whether the evidence so far decides a criterion, so that it needs no more items.

    `confidence` is the criterion's, `alpha` the policy's, `criteria` the number of criteria that share that alpha: all
    of the tier that are not counts. The answer is the gate's verdict on the same evidence:

    - "pass" is the gate's own comparison, `p_pass <= 1 - confidence`. The gate also requires that FAIL is not shown,
      which always holds: a test never contradicts the plain mean, so one of `p_pass` and `p_fail` is always 1.
    - "fail" is Bonferroni's `criteria * p_fail <= alpha`, whatever the others show: Holm's adjusted p-value is the
      maximum of (criteria - rank) * p over this p and smaller ones, at most `criteria * p_fail`.

    No earlier look is remembered: while one criterion waits for another over the same items, its evidence grows and is
    tested again. So items are evaluated until the same look resolves all criteria over them. The gate's other
    requirements (enough items scored, few errored, a margin above the noise floor) make a verdict NOT_MEASURED or
    INCONCLUSIVE whatever the p-values are; the caller checks them.

    Raises:
        ValueError: fewer than one criterion.
    """
    if criteria < 1:
        raise ValueError("a criterion is one of at least one")
    if test.p_pass <= 1.0 - confidence:
        return "pass"
    return "fail" if criteria * test.p_fail <= alpha else "open"


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, in the order given; reject those <= alpha. A NaN counts as 1.

    Controls the family-wise error rate under any dependence (Holm, 1979, Scand. J. Statist. 6, 65-70).
    """
    cleaned = [1.0 if math.isnan(p) else p for p in p_values]
    adjusted = [1.0] * len(cleaned)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(cleaned)), key=cleaned.__getitem__)):
        running = max(running, min(1.0, (len(cleaned) - rank) * cleaned[index]))
        adjusted[index] = running
    return adjusted
