"""The newest run held against the blessed one, item by item where both asked the same. Pure."""

from collections.abc import Sequence

from q36eval.gate.blessed import against_blessed
from q36eval.records import Interval, Measurement, Record


class AgainstBlessed(Record):
    """One metric of a run with the blessed run in the reference's place, paired by the clusters that both asked.

    `effect` is this run less the blessed one, or their ratio; `no_change` is the value that means none (0 or 1). It is
    one look at one run, at the interval's own level: it answers whether other items would agree, where the charts
    answer whether the runs moved. `interval` is None where they cannot be paired, and `note` says why.
    """

    run_id: str
    blessed_run_id: str
    effect: float | None = None
    no_change: float = 0.0
    interval: Interval | None = None
    clusters: int = 0
    note: str = ""

    @property
    def moved(self) -> bool:
        """Whether the interval leaves out no change."""
        return self.interval is not None and not self.interval.lower <= self.no_change <= self.interval.upper


def pair_with_blessed(
    run_id: str, measurement: Measurement, blessed_run_id: str, blessed: Sequence[Measurement]
) -> AgainstBlessed:
    """`measurement` of a run against the blessed run's measurements of the same key."""
    found = against_blessed(measurement, _distinct(blessed))
    if isinstance(found, str):
        return AgainstBlessed(run_id=run_id, blessed_run_id=blessed_run_id, note=found)
    return AgainstBlessed(
        run_id=run_id,
        blessed_run_id=blessed_run_id,
        effect=found.effect,
        no_change=1.0 if found.estimator in ("ratio", "perplexity") else 0.0,
        interval=found.effect_interval,
        clusters=0 if found.clusters is None else len(found.clusters.units),
    )


def _distinct(measurements: Sequence[Measurement]) -> list[Measurement]:
    """A resumed run may hold the same measurement twice."""
    return [one for place, one in enumerate(measurements) if one not in measurements[:place]]
