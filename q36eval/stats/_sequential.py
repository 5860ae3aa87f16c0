"""The stopping rule of one criterion, and the exact test of flips."""

from typing import Literal, Protocol

Settled = Literal["pass", "fail", "open"]


class PValues(Protocol):
    """What a margin test says: a `MarginTest`, or a criterion's result."""

    @property
    def p_pass(self) -> float: ...

    @property
    def p_fail(self) -> float: ...


def settled(test: PValues, confidence: float, alpha: float, criteria: int) -> Settled:
    """Whether the evidence so far decides a criterion, so that no more need be asked for its sake.

    `confidence` is the criterion's, `alpha` the policy's, `criteria` how many share that alpha: all of its tier that
    are no counts. The answer is the gate's verdict on the same evidence:

    - "pass" is the gate's own comparison, `p_pass <= 1 - confidence`. The gate wants FAIL not shown too; it cannot be,
      for a test never contradicts the plain mean, so that of `p_pass` and `p_fail` one is always 1.
    - "fail" is Bonferroni's `criteria * p_fail <= alpha`, whatever the others show: Holm's adjusted p-value is the
      greatest of (criteria - rank) * p over this p and smaller ones, at most `criteria * p_fail`.

    Nothing of an earlier look is remembered: where one criterion waits for another over the same items, its evidence
    grows meanwhile and is asked again. So items are asked until all criteria over them are settled by the same look.
    What the gate asks for besides (enough items scored, few errored, a margin above the noise floor) makes a verdict
    NOT_MEASURED or INCONCLUSIVE whatever the p-values are, and is the caller's to check.

    Raises:
        ValueError: fewer than one criterion.
    """
    if criteria < 1:
        raise ValueError("a criterion is one of at least one")
    if test.p_pass <= 1.0 - confidence:
        return "pass"
    return "fail" if criteria * test.p_fail <= alpha else "open"


def mcnemar(lost: int, gained: int) -> float:
    """Exact two-sided p-value of McNemar's test (Psychometrika 12 (1947), 153-157): are flips as likely either way?

    `lost` items the reference has right and the branch wrong, `gained` the reverse; 1.0 without a flip. For the eye
    only: it takes items as independent, and that it is large shows nothing.
    """
    from scipy.stats import binomtest

    return float(binomtest(lost, lost + gained).pvalue) if lost + gained else 1.0
