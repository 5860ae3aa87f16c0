"""Evidence against the blessed run: the branch's answers now and at the time it was accepted. Pure."""

from collections.abc import Sequence

from q36eval.records import Clusters, Estimator, Measurement, Reason, Schedule
from q36eval.stats import summarize

ESTIMATORS: dict[Estimator, Estimator] = {
    "mean": "paired_mean",
    "paired_mean": "paired_mean",
    "paired_proportions": "paired_proportions",
    "perplexity": "perplexity",
    "ratio": "ratio",
}
"""The estimator after the blessed run's measurement takes the reference's place. A divergence, itself a comparison,
becomes a paired mean; quantiles and maxima have no sums by cluster, so they cannot be paired."""

BLESS = "`q36eval review bless RUN`"


def against_blessed(measurement: Measurement, blessed: Sequence[Measurement]) -> Measurement | Reason:
    """The measurement with the blessed run as its reference, paired by cluster names; or the reason why this fails.

    `blessed` holds the distinct measurements of the blessed run with the same key.
    """
    if measurement.estimator in ESTIMATORS and not blessed:
        return Reason(
            "blessed-missing",
            f"no blessed run holds {measurement.key}: accept a run of this branch that measured it with {BLESS}, "
            "then measure again",
        )
    if measurement.estimator in ESTIMATORS and len(blessed) > 1:
        several = f"the blessed run measured {measurement.key} {len(blessed)} times with different figures"
        return Reason("blessed-ambiguous", f"{several}; bless another")
    paired = paired_with(measurement, blessed[0] if blessed else measurement, "the blessed run")
    if isinstance(paired, Measurement) or measurement.estimator not in ESTIMATORS:
        return paired
    return Reason(paired.code, f"{paired.text}; accept a run that evaluated the same as this one with {BLESS}")


def paired_with(measurement: Measurement, other: Measurement, whose: str = "the other run") -> Measurement | Reason:
    """The measurement with another run as its reference, paired by cluster names; or the reason why this fails.

    Both runs must have evaluated the same clusters the same way. If one run stopped early, between blocks with the same
    layout, the longer run is cut to its length: bets may stop at any block. A unit that errored in either run errors
    its whole cluster. `whose` names the other run in messages.
    """
    if measurement.estimator not in ESTIMATORS:
        why = f"a {measurement.estimator} cannot be compared with {whose}, since it is not a sum over clusters"
        return Reason("no-sum-over-clusters", why)
    kind = (measurement.estimator, measurement.unit, measurement.direction)
    if kind != (other.estimator, other.unit, other.direction):
        return Reason("measured-otherwise", f"{whose} measured {measurement.key} in another way")
    clusters = _paired(measurement.clusters, other.clusters, whose)
    if isinstance(clusters, Reason):
        return clusters
    return measured(measurement, clusters, ESTIMATORS[measurement.estimator])


def measured(measurement: Measurement, clusters: Clusters, estimator: Estimator) -> Measurement:
    """`measurement` rebuilt from these clusters with that estimator."""
    value, reference_value, effect, interval = summarize(clusters, estimator)
    return measurement.model_copy(
        update={
            "estimator": estimator,
            "value": value,
            "reference_value": reference_value,
            "effect": effect,
            "effect_interval": interval,
            "counts": clusters.counts(),
            "clusters": clusters,
        }
    )


def _paired(ours: Clusters | None, theirs: Clusters | None, whose: str) -> Clusters | Reason:
    for run, clusters in (("this run", ours), (whose, theirs)):
        if clusters is None or clusters.names is None or len(set(clusters.names)) < len(clusters.names):
            why = f"{run}'s evidence does not name its items, so the two runs cannot be paired"
            return Reason("items-unnamed", why)
    assert ours is not None
    assert theirs is not None
    rows = _common_rows(ours, theirs)
    if isinstance(rows, Reason):
        return Reason(rows.code, f"{whose} {rows.text}")
    if ours.bounds != theirs.bounds:
        return Reason("weighed-otherwise", f"{whose} weighed its items otherwise")
    return _in_pairs(ours, theirs, rows)


Rows = tuple[list[int], list[int]]
"""Positions of the common clusters in our columns and in theirs, in the same order."""


def _common_rows(ours: Clusters, theirs: Clusters) -> Rows | Reason:
    """The clusters to compare, or the difference that prevents a comparison."""
    mine, blessed = ({name: row for row, name in enumerate(each.names or ())} for each in (ours, theirs))
    common = [name for name in mine if name in blessed]
    rows = [mine[name] for name in common], [blessed[name] for name in common]
    only_mine, only_blessed = len(mine) - len(common), len(blessed) - len(common)
    stopped_early = not (only_mine and only_blessed) and _one_is_the_start(ours, theirs, rows)
    if not common or ((only_mine or only_blessed) and not stopped_early):
        extra = f"{only_blessed} clusters that this run lacks, and {only_mine} that only this one has"
        return Reason("other-items", f"evaluated other items: {extra}")
    if ours.schedule is not None and theirs.schedule is not None and not _laid_out_alike(ours, theirs, rows):
        return Reason("other-blocks", "evaluated the same items in other blocks")
    totals = [
        [clusters.units[row] + clusters.errored[row] for row in chosen]
        for clusters, chosen in ((ours, rows[0]), (theirs, rows[1]))
    ]
    differing = sum(a != b for a, b in zip(*totals, strict=True))
    if differing:
        return Reason("counted-otherwise", f"counted otherwise in {differing} of {len(common)} clusters")
    return rows


def _one_is_the_start(ours: Clusters, theirs: Clusters, rows: Rows) -> bool:
    """Whether the common clusters are whole blocks from the start of both runs."""
    if ours.schedule is None or theirs.schedule is None or not rows[0]:
        return False
    for clusters, schedule, chosen in ((ours, ours.schedule, rows[0]), (theirs, theirs.schedule, rows[1])):
        last, kept = max(schedule.blocks[row] for row in chosen), set(chosen)
        if any(schedule.blocks[row] <= last for row in range(len(clusters.units)) if row not in kept):
            return False
    return True


def _laid_out_alike(ours: Clusters, theirs: Clusters, rows: Rows) -> bool:
    assert ours.schedule is not None
    assert theirs.schedule is not None
    blocks = [ours.schedule.blocks[row] for row in rows[0]], [theirs.schedule.blocks[row] for row in rows[1]]
    return ours.schedule.largest == theirs.schedule.largest and blocks[0] == blocks[1]


def _in_pairs(ours: Clusters, theirs: Clusters, rows: Rows) -> Clusters:
    """One cluster for each common one: our sums, and the other run's sums in the reference's place."""
    ours, theirs = ours.of_rows(rows[0]), theirs.of_rows(rows[1])
    schedule = ours.schedule or theirs.schedule
    columns: list[tuple[int, float, float, int]] = []
    for row, total in enumerate(map(sum, zip(ours.units, ours.errored, strict=True))):
        if ours.errored[row] or theirs.errored[row]:
            columns.append((0, 0.0, 0.0, total))  # a unit that errored in one run is unusable in the other run, too
        else:
            columns.append((total, ours.branch[row], theirs.branch[row], 0))
    return Clusters(
        units=tuple(column[0] for column in columns),
        branch=tuple(column[1] for column in columns),
        reference=tuple(column[2] for column in columns),
        errored=tuple(column[3] for column in columns),
        bounds=ours.bounds,
        schedule=None if schedule is None else Schedule(largest=schedule.largest, blocks=schedule.blocks),
        names=ours.names,
        families=ours.families,
    )
