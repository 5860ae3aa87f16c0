"""The interval of one proportion: exact, and valid where items differ in their rates."""

from q36eval.records import Interval


def proportion_interval(count: int, n: int, level: float = 0.95, *, errored: int = 0) -> Interval:
    """Clopper & Pearson's interval (Biometrika 26 (1934), 404-413) of a share of which `count` of `n` were seen.

    Each bound holds one-sided at (1 + level) / 2, so that "0 of 200" lies below 1.83 % at a level of 95 %. `errored`
    further items count as none for the lower bound and as all for the upper one. Items of several strata may have
    different rates: the bounds then hold for the mean rate, since one or more beyond the mean no sum has a heavier tail
    than the binomial (Hoeffding, Ann. Math. Statist. 27 (1956), 713-721); only the lower bound of a single
    count lies nearer than that, and misses 2.53 % for 2.5 %. NaN where nothing was scored.

    Raises:
        ValueError: a count that is negative or greater than n, or a negative number of errored items.
    """
    from scipy.special import betaincinv

    if not 0 <= count <= n or errored < 0:
        raise ValueError(f"{count} of {n} with {errored} errored is no proportion")
    if n == 0:
        nan = float("nan")
        return Interval(lower=nan, upper=nan, level=level, method="none: no item was scored")
    alpha, total = (1.0 - level) / 2.0, n + errored
    most = count + errored
    lower = float(betaincinv(count, total - count + 1, alpha)) if count else 0.0
    upper = float(betaincinv(most + 1, total - most, 1.0 - alpha)) if most < total else 1.0
    return Interval(lower=lower, upper=upper, level=level, method="Clopper-Pearson")
