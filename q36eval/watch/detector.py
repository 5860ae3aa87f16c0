"""Detects losses above the quiet rate: bets whose false alarms are bounded for any number of looks. Pure.

An item is lost or not. Quiet means: whatever was seen before, the chance that the next item of a stream is lost is at
most `quiet`. Then every factor 1 + b (lost - quiet), 0 <= b <= 1 / quiet, has expectation at most 1, and so has the
product over a round's items: an e-value (Waudby-Smith & Ramdas, arXiv 2010.09686).

- A detector (`detected`) never ends: M <- (M + 1) e, the e-detector of Shiryaev-Roberts type (Shin, Ramdas & Rinaldo,
  arXiv 2203.03532). M minus the rounds so far is a supermartingale, so that a quiet stream reaches A only after A
  rounds on average, or more: an average run length that holds without a limit distribution, at every look. It restarts
  automatically, so a change after months of quiet is found as fast as one on the first day.
- A weighted mean of e-detectors is one. So several streams share one rate: the alarm is the mean's.
- A trial (`tried`) begins once and starts at 1: by Ville's inequality a quiet stream ever reaches 1 / alpha with a
  chance of at most alpha. It confirms an alarm on items that had no part in it.
- `share_bets` hold however the items of one round depend on each other; `quiet_bets` need each item's chance, given all
  before it, to be quiet: items of a round that are lost together are many losses to them.
- `recovery_bets` hold against the opposite: lost with a chance of at least `damaged`.

The best size of a bet depends on the unknown damage: the mean over `SHARES` of the largest bet is as good as the best
of them, up to a factor.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
"""Bets as shares of the largest possible one, which would lose everything on a stream without losses."""
CALIBRATION_LEVEL = 0.999
"""Confidence of the bound on the quiet share of losses that a calibration gives, for each stream. At 0.99 those few
that it does not cover alarmed so often that they spent the rate of all (benchmarks/README.md)."""

Logs = tuple[float, ...]
"""The logarithm of each bet's wealth."""
NOTHING: Logs = (-math.inf,) * len(SHARES)
"""The value of a detector before its first round."""
ONE: Logs = (0.0,) * len(SHARES)
"""The value of a trial before its first item."""


def quiet_bets(items: Sequence[bool], quiet: float) -> Logs:
    """Log of a round's e-value under each bet against: lost with a chance of at most `quiet` in (0, 1)."""
    lost, kept = sum(items), len(items) - sum(items)
    return tuple(lost * math.log1p(share * (1.0 - quiet) / quiet) + kept * math.log1p(-share) for share in SHARES)


def mixed_bets(items: Sequence[tuple[bool, float]]) -> Logs:
    """The same for items that each have their own quiet chance."""
    total = (0.0,) * len(SHARES)
    for lost, quiet in items:
        total = tried(total, quiet_bets([lost], quiet))
    return total


def share_bets(share_lost: float, quiet: float) -> Logs:
    """Log of the e-value of a round's share of losses in [0, 1] against: its mean, given the past, is at most `quiet`.

    A round is one bet, so that what its items have in common (the same minute, the same load) cannot count often. The
    factor 1 + b (x - quiet) is as valid for a bounded mean x as for one item (Waudby-Smith & Ramdas, section 4).
    """
    return tuple(math.log1p(share * (share_lost - quiet) / quiet) for share in SHARES)


def recovery_bets(items: Sequence[bool], damaged: float) -> Logs:
    """The same for the opposite hypothesis: lost with a chance of at least `damaged`."""
    return quiet_bets([not item for item in items], 1.0 - damaged)


def detected(before: Logs, bets: Logs) -> Logs:
    """A detector after one more round."""
    return tuple(_log_sum(log, 0.0) + bet for log, bet in zip(before, bets, strict=True))


def tried(before: Logs, bets: Logs) -> Logs:
    """A trial after more items."""
    return tuple(log + bet for log, bet in zip(before, bets, strict=True))


def log_mean(logs: Iterable[float]) -> float:
    """Log of the mean of what has those logarithms."""
    values = list(logs)
    keyed = {str(n): value for n, value in enumerate(values)}
    return log_total(keyed, dict.fromkeys(keyed, 1.0 / len(values)))


def log_total(logs: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Log of the weighted sum over those keys of what has those logarithms."""
    terms = [logs[key] + math.log(weights[key]) for key in logs if weights[key] > 0.0]
    top = max(terms, default=-math.inf)
    if not math.isfinite(top):
        return top
    return top + math.log(math.fsum(math.exp(term - top) for term in terms))


def _log_sum(one: float, other: float) -> float:
    top, low = max(one, other), min(one, other)
    return top if low == -math.inf else top + math.log1p(math.exp(low - top))


def quiet_share(lost: int, items: int, floor: float) -> float:
    """Above the chance of a loss with confidence `CALIBRATION_LEVEL` (Clopper & Pearson 1934), and at least `floor`.

    Where an item is lost beyond the greatest value of the calibration, none of its items is: the bound is then that of
    an order statistic, which is the same number.
    """
    if items == 0 or lost >= items:
        return 1.0
    from scipy.special import betaincinv  # needed only at the end of a calibration

    return max(floor, float(betaincinv(lost + 1, items - lost, CALIBRATION_LEVEL)))
