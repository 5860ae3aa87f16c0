"""Holm's step-down correction."""

import math
from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, in the order given; reject where they are <= alpha. A NaN counts as 1.

    Holds the family-wise error rate under any dependence (Holm, 1979, Scand. J. Statist. 6, 65-70).
    """
    cleaned = [1.0 if math.isnan(p) else p for p in p_values]
    adjusted = [1.0] * len(cleaned)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(cleaned)), key=cleaned.__getitem__)):
        running = max(running, min(1.0, (len(cleaned) - rank) * cleaned[index]))
        adjusted[index] = running
    return adjusted
