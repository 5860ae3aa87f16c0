"""Which canaries a lane holds, and which required prompts the gate counted as flipped in it. Pure.

Outcomes do not say their lane. The figures that were judged do: they name every question that they count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from q36eval.canaries.outcomes import question_name
from q36eval.metrics import ALL
from q36eval.records import ItemOutcome, Lane, Measurement, ProbeName

FLIPS = "must_pass_flips"
LANES = tuple(lane.value for lane in Lane)


@dataclass(frozen=True)
class CanaryLanes:
    """`canaries` are the names by lane, `flipped` the questions (`question_name`) that count as flipped, by lane and of
    all, `required` those that are counted. A run whose figures name no questions has none of them.
    """

    canaries: Mapping[str, frozenset[str]] = field(default_factory=dict)
    flipped: Mapping[str, frozenset[str]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, measurements: Iterable[Measurement]) -> "CanaryLanes":
        """From a run's measurements with their clusters."""
        canaries: dict[str, set[str]] = {}
        flipped: dict[str, frozenset[str]] = {}
        required: set[str] = set()
        for measurement in measurements:
            clusters = measurement.clusters
            if measurement.probe is not ProbeName.CANARIES or clusters is None or clusters.names is None:
                continue
            if measurement.slice in LANES:
                canaries.setdefault(measurement.slice, set()).update(n.partition("/")[0] for n in clusters.names)
            if measurement.metric == FLIPS and measurement.slice in (*LANES, ALL):
                counted = zip(clusters.names, clusters.branch, strict=True)
                required.update(clusters.names)
                flipped[measurement.slice] = frozenset(name for name, flips in counted if flips)
        if flipped:
            flipped[ALL] = frozenset[str]().union(*flipped.values())
        return cls({lane: frozenset(names) for lane, names in canaries.items()}, flipped, frozenset(required))

    def holds(self, lane: str, item: ItemOutcome) -> bool:
        """Whether a question is of that lane, or of any."""
        return lane == ALL or item.group in self.canaries.get(lane, ())

    def requires(self, item: ItemOutcome) -> bool:
        """Whether one confirmed flip of a question is a fault."""
        return question_name(item) in self.required

    def counts(self, lane: str, item: ItemOutcome) -> bool:
        """Whether a question is among the required prompts that the gate counted as flipped in that lane, or in any."""
        return question_name(item) in self.flipped.get(lane, ())
