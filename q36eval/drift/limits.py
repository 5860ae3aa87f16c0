"""How far a chart of standard normal residuals may go before it signals, for a wanted in-control run length."""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq

IN_CONTROL_RUN_LENGTH = 1_000.0
"""Runs until a stable branch raises a false alarm, on average: about 5.8 % of stable histories of 60 runs."""

EWMA_WEIGHT = 0.2
"""The newest residual's share in the EWMA; 0.05 to 0.25 is usual, small for small moves (Lucas & Saccucci 1990)."""

CUSUM_ALLOWANCE = 0.5
"""What a residual must exceed to count: half a move of one standard deviation, which it then finds fastest."""

CHARTS = 3
_NODES = 60


@dataclass(frozen=True)
class Limits:
    """Limits of the three charts of one metric, in standard normal units; `run_length` is that of all three together.

    `ewma` is the multiple of the EWMA's own standard deviation.
    """

    run_length: float
    ewma: float
    cusum: float
    shift: float


@cache
def limits_for(metrics: int, run_length: float = IN_CONTROL_RUN_LENGTH) -> Limits:
    """Limits under which `metrics` stable metrics together raise one false alarm in `run_length` runs, or fewer.

    Every chart of every metric gets an equal share of the rate (Bonferroni), however they are correlated.
    """
    each = run_length * max(1, metrics)
    chart = each * CHARTS
    return Limits(each, _ewma_limit(chart), _cusum_limit(chart), _shift_limit(chart))


def _cusum_limit(run_length: float) -> float:
    """Two one-sided CUSUMs, each of twice the run length; ARL by Siegmund (1985), Sequential Analysis, eq. 2.57."""
    k = CUSUM_ALLOWANCE

    def excess(limit: float) -> float:
        b = 2 * k * (limit + 1.166)
        return (math.exp(b) - b - 1) / (2 * k * k) - 2 * run_length

    return float(brentq(excess, 0.0, 60.0))


def _ewma_limit(run_length: float) -> float:
    """ARL from the integral equation of Crowder (1987), Technometrics 29(4), by Gauss-Legendre quadrature."""
    spread = math.sqrt(EWMA_WEIGHT / (2 - EWMA_WEIGHT))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)

    def excess(multiple: float) -> float:
        at, mass = nodes * multiple * spread, weights * multiple * spread
        density = _normal((at[None, :] - (1 - EWMA_WEIGHT) * at[:, None]) / EWMA_WEIGHT) / EWMA_WEIGHT
        from_each = np.linalg.solve(np.eye(_NODES) - density * mass, np.ones(_NODES))
        from_zero = 1 + (_normal(at / EWMA_WEIGHT) / EWMA_WEIGHT * mass) @ from_each
        return math.log(from_zero / run_length)

    return float(brentq(excess, 1.0, 7.0))


def _shift_limit(run_length: float) -> float:
    """ARL of the greatest standardised change, Siegmund & Venkatraman (1995), Ann. Statist. 23(1), theorem 1.

    Their discreteness correction nu(x) is close to exp(-0.583 x); the integral of x nu(x)^2 is then 1 / 1.166^2.
    """
    integral = 1 / 1.166**2

    def excess(limit: float) -> float:
        return 0.5 * math.log(2 * math.pi) + limit * limit / 2 - math.log(limit * integral) - math.log(run_length)

    return float(brentq(excess, 1.5, 12.0))


def _normal(
    at: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    density: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    return density
