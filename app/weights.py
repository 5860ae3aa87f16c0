"""The weights probe's one measurement so far: how many things about the checkpoint are not what they say they are."""

from collections.abc import Sequence

from q36eval.records import Counts, Direction, Interval, Measurement, ProbeName


def integrity(faults: Sequence[str]) -> Measurement:
    """A census of integrity faults; the note names them."""
    count = float(len(faults))
    return Measurement(
        probe=ProbeName.WEIGHTS,
        metric="integrity_faults",
        unit="faults",
        direction=Direction.LOWER_IS_BETTER,
        estimator="census",
        value=count,
        effect=count,
        effect_interval=Interval(lower=count, upper=count, level=0.95, method="census"),
        counts=Counts(total=max(1, len(faults)), scored=max(1, len(faults)), errored=0),
        note=" ".join(faults) or "every stored tensor was used once, every parameter filled once",
    )
