"""A contrast: what a criterion is tested on, one sum of per-unit values per independent cluster."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q36eval.records import Clusters

Array = NDArray[np.float64]

SIZE_CAP_QUANTILE = 0.9


@dataclass(frozen=True)
class Contrast:
    """Per-unit values z in [low, high], summed over each cluster.

    `sums` [C] over scored units, `units` [C] scored units, `errored` [C] units that gave no value; `low` and `high`
    may be infinite. Clusters are sorted, so nothing computed from a contrast depends on the order of the items.
    """

    sums: Array
    units: Array
    errored: Array
    low: float
    high: float

    @property
    def finite(self) -> bool:
        """Whether every cluster's sum is a finite number."""
        return bool(np.isfinite(self.sums).all())

    @property
    def bounded(self) -> bool:
        """Whether both ends of the range of z are finite."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def mean(self) -> float:
        """Ratio mean over scored units; NaN when nothing was scored."""
        total_units = float(self.units.sum())
        return float(self.sums.sum()) / total_units if total_units > 0 else float("nan")

    def negated(self) -> "Contrast":
        """The contrast of -z."""
        return sorted_contrast(-self.sums, self.units, self.errored, -self.high, -self.low)

    def with_capped_sizes(self) -> "Contrast":
        """Clusters larger than nine in ten others weigh as much as those, no more.

        A bet is limited by the largest loss that one cluster could bring, so a single oversized cluster (one fact asked
        nine times among facts asked once) would leave no test any power. Sizes are known before any answer is, so
        weights made from sizes alone are fair; what is then tested is the mean under these weights.
        """
        totals = self.units + self.errored
        if totals.size == 0:
            return self
        cap = np.quantile(totals, SIZE_CAP_QUANTILE, method="higher")
        weights = np.minimum(1.0, cap / totals)
        return Contrast(self.sums * weights, self.units * weights, self.errored * weights, self.low, self.high)


def sorted_contrast(sums: Array, units: Array, errored: Array, low: float, high: float) -> Contrast:
    """A contrast without empty clusters, in canonical order."""
    kept = (units + errored) > 0
    sums, units, errored = sums[kept], units[kept], errored[kept]
    order = np.lexsort((errored, units, sums))
    return Contrast(sums[order], units[order], errored[order], low, high)


def linear_contrast(clusters: Clusters, branch_weight: float, reference_weight: float = 0.0) -> Contrast:
    """z = branch_weight * branch + reference_weight * reference, with the range that follows from `clusters.bounds`.

    Raises:
        ValueError: when a reference is needed and the clusters have none.
    """
    sums = branch_weight * np.asarray(clusters.branch, dtype=np.float64)
    if reference_weight != 0.0:
        if clusters.reference is None:
            raise ValueError("these clusters hold no reference to compare with")
        sums = sums + reference_weight * np.asarray(clusters.reference, dtype=np.float64)
    low, high = clusters.bounds if clusters.bounds is not None else (-np.inf, np.inf)
    low_z, high_z = 0.0, 0.0
    for weight in (branch_weight, reference_weight):
        if weight != 0.0:
            ends = sorted((weight * low, weight * high))
            low_z, high_z = low_z + ends[0], high_z + ends[1]
    units = np.asarray(clusters.units, dtype=np.float64)
    errored = np.asarray(clusters.errored, dtype=np.float64)
    return sorted_contrast(sums, units, errored, low_z, high_z)
