"""What a probe will yield for what it is asked, said before anything is asked and by the code that yields it."""

from dataclasses import dataclass

from q36eval.records import Direction, Estimator, ProbeName


@dataclass(frozen=True)
class DeclaredFigure:
    """One measurement that a probe yields once all of its items are evaluated.

    `bounded` says whether a unit's value lies between finite bounds. `items` are the units that it rests on and
    `clusters` the independent ones among them, each None where only the data tell.
    """

    probe: ProbeName
    metric: str
    slice: str
    estimator: Estimator
    direction: Direction
    unit: str
    bounded: bool = True
    items: int | None = None
    clusters: int | None = None

    @property
    def key(self) -> str:
        """As `Measurement.key` writes it."""
        return f"{self.probe}.{self.metric}[{self.slice}]"
