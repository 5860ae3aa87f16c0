"""Measure the canaries on the sandbox's branches and along the damage ladder, and print data/sandbox/README.md's table.

    python -m q36eval.app.sandbox.measured_canaries

The rungs are the reference with one thing rounded, as BF16 values: its head to FP8 in blocks of 128 by 128, or its
routed experts to integers in groups of 32. They are made in the working state and belong to no family.
"""

from collections.abc import Callable, Iterator
from typing import Any

from q36eval.app.cli.options import open_history
from q36eval.app.console import ConsoleProgress
from q36eval.app.sandbox.ladder import fp8_blocks, make_rung, round_to_integers
from q36eval.app.targets import load_family, resolve
from q36eval.config import Paths
from q36eval.history import History, RunRecord
from q36eval.records import Interval, Measurement, ProbeName
from q36eval.run.measure import measure
from q36eval.run.request import Request, Target

RUNG_BITS = (8, 4, 3, 2)
COLUMNS: tuple[tuple[str, str], ...] = (
    ("failures", "failure_rate[all]"),
    ("margin, nats", "decisive_margin[all]"),
    ("margin ratio", "decisive_margin_ratio[all]"),
    ("at risk", "at_risk[all]"),
    ("right numbers, wrong conclusion", "right_numbers_wrong_conclusion[all]"),
    ("must-pass flips", "must_pass_flips[all]"),
    ("unstable", "must_pass_unstable[all]"),
)


def targets(family: Any, paths: Paths) -> Iterator[Target]:
    """Every branch, then the rungs of the ladder."""
    reference = resolve(family.reference, family, paths)
    yield from (resolve(name, family, paths) for name in family.branches)
    ladder = paths.state / "ladder"
    head = make_rung(reference.folder, ladder / "fp8-head", lambda name: "lm_head" in name, fp8_blocks)
    yield Target("fp8-head-rung", head)
    for bits in RUNG_BITS:
        rung = make_rung(reference.folder, ladder / f"int{bits}", _is_expert, _to_integers(bits))
        yield Target(f"int{bits}-rung", rung)


def _is_expert(name: str) -> bool:
    return ".mlp.experts." in name


def _to_integers(bits: int) -> Callable[[Any], Any]:
    return lambda tensor: round_to_integers(tensor, bits)


def row(run: RunRecord, history: History) -> str:
    """One branch as a row: every figure with the interval of its effect, and the seconds the run took."""
    found = {f"{m.metric}[{m.slice}]": m for m in history.measurements(run.id)}
    cells = [_cell(found.get(key)) for _, key in COLUMNS]
    seconds = "" if run.finished is None else f"{(run.finished - run.started).total_seconds():.0f}"
    return f"| `{run.branch}` | " + " | ".join([*cells, seconds]) + " |"


def _cell(measurement: Measurement | None) -> str:
    if measurement is None:
        return "not measured"
    interval = measurement.effect_interval
    if measurement.estimator == "census":
        return f"{measurement.value:g} of {measurement.counts.scored}"
    if measurement.estimator == "ratio":
        return f"{measurement.effect:.3f} {_bounds(interval, 1.0)}"
    if measurement.unit == "fraction":
        points = interval.model_copy(update={"lower": 100 * interval.lower, "upper": 100 * interval.upper})
        return f"{measurement.value:.1%} ({100 * measurement.effect:+.1f} {_bounds(points, 0.0)})"
    return f"{measurement.value:.2f} ({measurement.effect:+.3f} {_bounds(interval, 0.0)})"


def _bounds(interval: Interval, nothing: float) -> str:
    """The interval, in bold where it excludes that nothing changed."""
    text = f"[{interval.lower:.3g}, {interval.upper:.3g}]"
    return f"**{text}**" if not interval.lower <= nothing <= interval.upper else text


def main() -> None:
    """Ask every branch and rung, and print the table."""
    paths = Paths.default()
    family: Any = load_family(None, paths)
    history, reference = open_history(paths), resolve(family.reference, family, paths)
    print("| branch | " + " | ".join(title for title, _ in COLUMNS) + " | seconds |", flush=True)
    print("|---" * (len(COLUMNS) + 2) + "|", flush=True)
    for target in targets(family, paths):
        request = Request(
            family=family,
            branch=target,
            reference=reference,
            suite=family.suite,
            policy=None,
            probes=(ProbeName.CANARIES,),
        )
        with ConsoleProgress() as progress:
            run = measure(request, paths, history, progress)
        print(row(run, history), flush=True)


if __name__ == "__main__":
    main()
