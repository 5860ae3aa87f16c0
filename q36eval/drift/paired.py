"""One metric of a run paired with the blessed run, item by item, and whether the difference is beyond noise. Pure."""

import math
from collections.abc import Sequence

from q36eval.drift.records import PairedDifference
from q36eval.gate.blessed_run import against_blessed
from q36eval.gate.noise import floor_metric
from q36eval.records import Interval, Measurement, Reason
from q36eval.stats import summarize, why_not_measured

ALPHA = 0.05
"""Chance that a stable branch is reported as drifting, over all watched metrics of one comparison together."""

RATIOS = ("ratio", "perplexity")


def paired_difference(
    key: str, run: Sequence[Measurement], blessed: Sequence[Measurement], *, metrics: int = 1
) -> PairedDifference | str:
    """The metric `key` of a run against the blessed run, from all measurements of both; or why they cannot be paired.

    The interval holds for `metrics` comparisons at once (Bonferroni). Identical figures of every cluster have no noise.
    """
    ours = [one for one in run if one.key == key]
    if not ours:
        return "The newest run did not measure it."
    paired = against_blessed(ours[-1], [one for one in blessed if one.key == key])
    if isinstance(paired, Reason):
        return f"Cannot be paired with the blessed run: {paired.text}."
    clusters, level, no_change = paired.clusters, 1.0 - ALPHA / metrics, 1.0 if paired.estimator in RATIOS else 0.0
    assert clusters is not None
    missing = why_not_measured(clusters, paired.estimator)
    if missing is not None:
        return f"Cannot be paired with the blessed run: {missing.text}."
    if clusters.branch == clusters.reference and not any(clusters.errored):
        effect, interval = no_change, Interval(lower=no_change, upper=no_change, level=level, method="identical")
    else:
        _, _, effect, interval = summarize(clusters, paired.estimator, level)
    return PairedDifference(
        effect=effect,
        no_change=no_change,
        interval=interval,
        clusters=len(clusters.units),
        floor=max((_floor(key, paired, each) for each in (run, blessed)), default=0.0),
    )


def _floor(key: str, paired: Measurement, measurements: Sequence[Measurement]) -> float:
    """What the reference loses against itself in that metric: the numerical noise of a run; 0 where it has no floor.

    Floors are in the unit of the difference. That over all tokens stands in for a group of tokens.
    """
    if paired.estimator in RATIOS:
        return 0.0
    floors = [
        one
        for one in measurements
        if one.probe is paired.probe
        and one.metric == floor_metric(paired.metric)
        and one.slice in (paired.slice, "all")
    ]
    return max((one.value for one in floors if math.isfinite(one.value)), default=0.0)
