"""Every metric that is measured: its unit, its direction, how it is estimated, and what it is in plain words.

A metric is described in `metrics.yaml` and nowhere else. Probes build their measurements and declarations from it;
policies, reports, model cards, drift and pages read it. To add one: an entry there, and the code that computes it.
Slices (families, tasks, lanes, kinds of tokens) are data, not metrics.

`python -m q36eval.metrics` prints it as a table; `make docs` puts that into the site.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter

from q36eval.files import read_our_yaml
from q36eval.records import Clusters, Counts, Direction, Estimator, Interval, Measurement, ProbeName

ALL = "all"
"""The slice that holds everything."""

NOISE_FLOOR = "_noise_floor"

FloorUnit = Literal["nats/token", "fraction"]


@dataclass(frozen=True)
class Metric:
    """One metric.

    `label` continues a sentence ("KL divergence from the reference"), `meaning` is one of its own, `short` is for a
    narrow table. `bounds` are the least and the greatest value that one unit can have, None where it is unbounded or a
    count. `floor_unit` is the unit of its noise floor, None where no floor of it is measured. `assumed_mean` is what a
    reference is taken to score while nothing of it is captured.
    """

    probe: ProbeName
    name: str
    label: str
    meaning: str
    unit: str = "fraction"
    direction: Direction = Direction.LOWER_IS_BETTER
    estimator: Estimator = "mean"
    bounds: tuple[float, float] | None = None
    short: str = ""
    floor_unit: FloorUnit | None = None
    assumed_mean: float | None = None

    __pydantic_config__ = ConfigDict(extra="forbid")

    @property
    def title(self) -> str:
        """The label as a heading."""
        return self.label[:1].upper() + self.label[1:]

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self.direction is Direction.HIGHER_IS_BETTER

    @property
    def better(self) -> str:
        """Which way is better, in a word."""
        return "higher" if self.higher_is_better else "lower"

    @property
    def bounded(self) -> bool:
        """Whether a unit's value lies between finite bounds; of a census everything is counted."""
        if self.estimator in ("census", "derived"):
            return True
        return self.bounds is not None and all(map(math.isfinite, self.bounds))

    @property
    def is_share(self) -> bool:
        """Whether people read it in percent."""
        return self.unit == "fraction" and self.estimator != "census"

    @property
    def is_distance(self) -> bool:
        """Whether it says how far a branch is from the reference, which depends on the quantization scheme.

        What users notice (answers, scores, margins of answers) does not: there the same loss is the same harm.
        """
        return self.moved_by_noise or self.estimator == "perplexity"

    @property
    def moved_by_noise(self) -> bool:
        """Whether the reference differs from itself in it, so that a noise floor belongs to it, measured or not."""
        return (self.probe is ProbeName.KL and self.estimator != "census") or self.floor_unit is not None

    def titled(self, slice: str = ALL) -> str:
        """A heading for one slice: `KL divergence from the reference (czech)`."""
        return self.title if slice == ALL else f"{self.title} ({slice})"

    def declared(self, slice: str = ALL, *, items: int | None = None, clusters: int | None = None) -> "DeclaredFigure":
        """What will be measured of a slice, before anything is evaluated."""
        return DeclaredFigure(self, slice, items, clusters)

    def measured(self, slice: str = ALL, **fields: Any) -> Measurement:
        """What was measured of a slice; `fields` are those of `Measurement` that say how much, and on what."""
        described = {
            "probe": self.probe,
            "metric": self.name,
            "slice": slice,
            "unit": self.unit,
            "direction": self.direction,
            "estimator": self.estimator,
        }
        return Measurement.model_validate(described | fields)

    def summarized(self, clusters: Clusters, slice: str = ALL, **fields: Any) -> Measurement:
        """What the metric's estimator makes of a slice's evidence (`q36eval.stats.summarize`); `fields` as above."""
        from q36eval.stats import summarize  # scipy, which commands that only read metrics do without

        value, reference_value, effect, interval = summarize(clusters, self.estimator)
        return self.measured(
            slice,
            value=value,
            reference_value=reference_value,
            effect=effect,
            effect_interval=interval,
            counts=clusters.counts(),
            clusters=clusters,
            **fields,
        )

    def counted(
        self, count: float, counts: Counts, slice: str = ALL, *, level: float = 0.95, **fields: Any
    ) -> Measurement:
        """A census: everything was counted, so the interval is the count itself."""
        exact = Interval(lower=count, upper=count, level=level, method="census")
        return self.measured(
            slice, value=float(count), effect=float(count), effect_interval=exact, counts=counts, **fields
        )


@dataclass(frozen=True)
class DeclaredFigure:
    """One measurement that a probe yields once all of its items are evaluated.

    `items` are the units that it rests on and `clusters` the independent ones among them, each None where only the data
    tell; `effective_clusters` are those of equal size that the clusters weigh as at most, None where it is not known
    what each of them weighs.
    """

    metric: Metric
    slice: str = ALL
    items: int | None = None
    clusters: int | None = None
    effective_clusters: int | None = None

    @property
    def key(self) -> str:
        """As `Measurement.key` writes it."""
        return f"{self.metric.probe}.{self.metric.name}[{self.slice}]"


def _registry() -> dict[tuple[ProbeName, str], Metric]:
    checked = TypeAdapter(Metric)
    return {
        (ProbeName(probe), name): checked.validate_python({"probe": probe, "name": name, **fields})
        for probe, metrics in read_our_yaml(Path(__file__).with_suffix(".yaml")).items()
        for name, fields in metrics.items()
    }


METRICS = _registry()
"""Every metric by its probe and name."""


def metric_of(probe: ProbeName, name: str) -> Metric:
    """A metric's description; of one that is not registered (from another version) what its name tells."""
    metric = METRICS.get((probe, name))
    if metric is not None:
        return metric
    floored = METRICS.get((probe, name.removesuffix(NOISE_FLOOR)))
    if floored is not None:
        return replace(
            floored,
            name=name,
            label=f"noise floor of {floored.label}",
            meaning=f"What the reference differs from itself by in this: {floored.meaning}",
            unit=floored.floor_unit or floored.unit,
            direction=Direction.LOWER_IS_BETTER,
            estimator="mean",
            short="",
        )
    return Metric(probe, name, name.replace("_", " "), "", unit="")


def metric_of_key(key: str) -> tuple[Metric, str]:
    """The metric and the slice of a measurement's key, `probe.metric[slice]`.

    Raises:
        ValueError: it is no such key.
    """
    probe, _, rest = key.partition(".")
    name, _, slice = rest.partition("[")
    return metric_of(ProbeName(probe), name), slice.removesuffix("]")


def criterion_title(given: str, probe: ProbeName, metric: str, slice: str) -> str:
    """What people call a criterion: the title that its policy gives, else its metric's label with the slice."""
    return given or metric_of(probe, metric).titled(slice)


def markdown_table() -> str:
    """The registry as a page in Markdown."""
    lines = [
        "# Metrics",
        "",
        "Every metric that a probe measures, as a policy names it. `python -m q36eval.metrics` writes this page from",
        "the code. `q36eval history show RUN` lists what a run measured, slice by slice.",
    ]
    for probe in ProbeName:
        lines += ["", f"## {probe}", "", "| metric | what it is | unit | better | estimator |", "|---|---|---|---|---|"]
        lines += [
            f"| `{m.name}` | **{m.title}**. {m.meaning.replace('|', chr(92) + '|')} | {m.unit} | {m.better} | "
            f"{m.estimator.replace('_', ' ')} |"
            for (of, _), m in METRICS.items()
            if of is probe
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown_table(), end="")
