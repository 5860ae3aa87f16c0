"""A contrast: the tested quantity, one sum of per-unit values per independent cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from q36eval.records import Clusters, PlannedClusters

Array = NDArray[np.float64]

LARGEST = 1e100
"""A larger sum is not evidence: its square may overflow."""


def planned_largest(sizes: Sequence[float]) -> float:
    """The maximum cluster size for bets, chosen from the sizes of all planned clusters, before any answer.

    A bet is limited by the largest loss that one cluster could bring, so a single oversized cluster (one fact evaluated
    nine times among facts evaluated once) would leave a test without power. Larger clusters are therefore weighted like
    this size, and the part cut off counts at its worst (`Contrast.with_cut_off_at`). The size minimizes the total cost.
    """
    distinct, clusters = np.unique(np.asarray(sizes, dtype=np.float64), return_counts=True)
    return size_cap(distinct, clusters.astype(np.float64))


def planned_clusters(sizes: Sequence[float], largest: float) -> PlannedClusters:
    """A schedule's record of clusters of these sizes."""
    column = np.asarray(sizes, dtype=np.float64)
    return PlannedClusters(
        clusters=len(column),
        units=float(column.sum()),
        squares=float((column**2).sum()),
        cut=float(np.maximum(column - largest, 0.0).sum()),
    )


@dataclass(frozen=True)
class Contrast:
    """Per-unit values z in [low, high], summed over each cluster.

    One row per cluster, or per kind of cluster: `sums` [R] over scored units, `units` [R] scored units, `errored` [R]
    units without a value, `counts` [R] the number of clusters in the row; `low` and `high` may be infinite. Rows are in
    canonical order, so nothing computed from a contrast depends on the order of the items. `largest` is the maximum
    cluster size if fixed beforehand, else None: the largest seen. `cut_share` is the share of all planned units cut off
    by a size fixed beforehand.
    """

    sums: Array
    units: Array
    errored: Array
    counts: Array
    low: float
    high: float
    largest: float | None = None
    cut_share: float = 0.0

    @property
    def finite(self) -> bool:
        """Whether every cluster's sum is finite and not too large to compute with."""
        return bool((np.abs(self.sums) < LARGEST).all())

    @property
    def bounded(self) -> bool:
        """Whether both ends of the range of z are finite."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def total(self, column: Array) -> float:
        """The sum of a column over all clusters."""
        return float((self.counts * column).sum())

    @property
    def mean(self) -> float:
        """Ratio mean over scored units; NaN if nothing was scored."""
        total_units = self.total(self.units)
        return self.total(self.sums) / total_units if total_units > 0 else float("nan")

    def negated(self) -> "Contrast":
        """The contrast of -z, in the same row order."""
        columns = (-self.sums, self.units, self.errored, self.counts)
        return Contrast(*columns, -self.high, -self.low, self.largest, self.cut_share)

    def with_capped_sizes(self) -> "Contrast":
        """Clusters larger than the cap get the cap's weight: `planned_largest`, or `size_cap` for a single look.

        Sizes are known before any answer, so weights from sizes alone are unbiased. The test is then on the mean under
        these weights, and the part cut off is imputed (`with_cut_off_at`).
        """
        weights = self._size_weights
        columns = (self.sums * weights, self.units * weights, self.errored * weights)
        return Contrast(*columns, self.counts, self.low, self.high, self.largest, self.cut_share)

    @property
    def _size_weights(self) -> Array:
        totals = self.units + self.errored
        if totals.size == 0:
            return totals
        return np.minimum(1.0, (self.largest or size_cap(totals, self.counts)) / totals)

    def with_cut_off_at(self, value: float, mean: float) -> float:
        """The mean under capped sizes that corresponds to a plain mean of `mean` if every unit cut off were `value`.

        With `value` the largest possible one, a plain mean of at least `mean` implies a capped mean of at least this,
        wherever the loss is. For early looks it is the population's mean, so the share cut off is the plan's.
        """
        whole, kept = self._whole_and_kept()
        return mean if kept == whole else (mean * whole - value * (whole - kept)) / kept

    def with_cut_off_put_back(self, value: float, capped_mean: float) -> float:
        """The plain mean that corresponds to a mean under capped sizes if every unit cut off were `value`."""
        whole, kept = self._whole_and_kept()
        return capped_mean if kept == whole else (capped_mean * kept + value * (whole - kept)) / whole

    def _whole_and_kept(self) -> tuple[float, float]:
        """All units, and their weight under the cap of a single look; equal if nothing is cut off."""
        if self.largest is not None:
            return 1.0, 1.0 - self.cut_share
        totals = self.units + self.errored
        return self.total(totals), self.total(totals * self._size_weights)


CAP_COST = 3.7
"""log(1 / 0.025): if nothing goes wrong, a bound is about this times the largest size over all units."""


def size_cap(totals: Array, counts: Array) -> float:
    """The cap of a single look, from the clusters seen. It minimizes the sum of two costs: that of a large cluster to a
    bet, and that of the units cut off, which count at their worst.
    """
    sizes = np.unique(totals)
    cut = np.array([float((counts * np.maximum(totals - size, 0.0)).sum()) for size in sizes])
    return float(sizes[np.argmin(CAP_COST * sizes + cut)])


@dataclass(frozen=True)
class Columns:
    """The columns of clusters as arrays [R], without empty clusters, in canonical order.

    Bounded values have few levels, so equal clusters of one block share one row: a test then costs the same for a
    hundred items as for fourteen thousand. Unbounded clusters keep a row each.
    """

    branch: Array
    reference: Array | None
    units: Array
    errored: Array
    blocks: Array
    counts: Array
    bounds: tuple[float, float] | None
    largest: float | None
    cut_share: float = 0.0
    expected_changes: Array | None = None

    @property
    def bounded(self) -> bool:
        """Whether both bounds of a value are finite."""
        return finite_bounds(self.bounds)

    @cached_property
    def weights(self) -> Array:
        """The weight of each unit of a row with sizes capped at `largest`."""
        totals = self.units + self.errored
        return np.ones_like(totals) if self.largest is None else np.minimum(1.0, self.largest / totals)

    def contrast(self, branch_weight: float, reference_weight: float = 0.0) -> Contrast:
        """z = branch_weight * branch + reference_weight * reference, with the range that follows from `bounds`.

        Raises:
            ValueError: a reference is needed and the clusters have none.
        """
        # a weight of zero omits the column: infinity times zero is NaN
        sums = branch_weight * self.branch if branch_weight else np.zeros_like(self.units)
        if reference_weight != 0.0:
            if self.reference is None:
                raise ValueError("these clusters hold no reference to compare with")
            sums = sums + reference_weight * self.reference
        low, high = self.bounds if self.bounds is not None else (-np.inf, np.inf)
        low_z, high_z = 0.0, 0.0
        for weight in (branch_weight, reference_weight):
            if weight != 0.0:
                ends = sorted((weight * low, weight * high))
                low_z, high_z = low_z + ends[0], high_z + ends[1]
        if not self.bounded:
            # a seeded bootstrap draws by position, so the result for given sums must not depend on other columns
            return sorted_contrast(sums, self.units, self.errored, low_z, high_z)
        columns = (sums, self.units, self.errored, self.counts)
        return Contrast(*columns, low_z, high_z, self.largest, self.cut_share)


def sorted_contrast(sums: Array, units: Array, errored: Array, low: float, high: float) -> Contrast:
    """A contrast of one row per cluster, ordered by their sums."""
    order = np.lexsort((errored, units, sums))
    return Contrast(sums[order], units[order], errored[order], np.ones_like(sums), low, high)


def finite_bounds(bounds: tuple[float, float] | None) -> bool:
    """Whether both bounds exist and are finite."""
    return bounds is not None and bool(np.isfinite(bounds).all())


def columns_of(clusters: Clusters) -> Columns:
    """The columns of `clusters`, each unit with the cluster's weight; without a schedule all are in one block."""
    schedule = clusters.schedule
    size = len(clusters.units)
    blocks = np.zeros(size) if schedule is None else np.asarray(schedule.blocks, dtype=np.float64)
    weights = np.ones(size) if clusters.weights is None else np.asarray(clusters.weights, dtype=np.float64)
    return _columns(clusters, blocks, weights, np.zeros(size), None if schedule is None else schedule.planned)


def columns_of_bets(clusters: Clusters) -> Columns:
    """The columns of the clusters that are bet on, as the schedule weighs them.

    Raises:
        ValueError: the clusters have no schedule.
    """
    schedule = clusters.schedule
    if schedule is None:
        raise ValueError("bets need evidence that was laid out in blocks")
    if schedule.last_bet is None or schedule.weights is None or schedule.expected_changes is None:
        return columns_of(clusters)
    blocks = np.asarray(schedule.blocks, dtype=np.float64)
    weights = np.where(blocks <= schedule.last_bet, np.asarray(schedule.weights, dtype=np.float64), 0.0)
    expected = np.asarray(schedule.expected_changes, dtype=np.float64)
    return _columns(clusters, blocks, weights, expected, schedule.first)


def _columns(
    clusters: Clusters,
    blocks: Array,
    weights: Array,
    expected: Array,
    planned: Mapping[str, PlannedClusters] | None,
) -> Columns:
    reference = (0.0,) * len(clusters.units) if clusters.reference is None else clusters.reference
    table = np.stack(
        [
            blocks,
            weights * np.asarray(clusters.branch, dtype=np.float64),
            weights * np.asarray(reference, dtype=np.float64),
            weights * np.asarray(clusters.units, dtype=np.float64),
            weights * np.asarray(clusters.errored, dtype=np.float64),
            expected,
        ]
    )
    table = table[:, (table[3] + table[4]) > 0]
    table = table[:, np.lexsort(table[::-1])]
    counts = np.ones(table.shape[1])
    if finite_bounds(clusters.bounds) and counts.size:
        first = np.flatnonzero(np.concatenate([[True], (table[:, 1:] != table[:, :-1]).any(axis=0)]))
        counts = np.diff(np.append(first, counts.size)).astype(np.float64)
        table = table[:, first]
    blocks, branch, reference_sums, units, errored, expected = table
    return Columns(
        branch=branch,
        reference=None if clusters.reference is None else reference_sums,
        units=units,
        errored=errored,
        blocks=blocks,
        counts=counts,
        bounds=clusters.bounds,
        largest=None if clusters.schedule is None else float(clusters.schedule.largest),
        cut_share=0.0 if not planned else sum(p.cut for p in planned.values()) / sum(p.units for p in planned.values()),
        expected_changes=expected if expected.any() else None,
    )


def linear_contrast(clusters: Clusters, branch_weight: float, reference_weight: float = 0.0) -> Contrast:
    """`Columns.contrast` of `clusters`."""
    return columns_of(clusters).contrast(branch_weight, reference_weight)
