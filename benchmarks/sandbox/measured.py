"""Measure the sandbox's branches and the damage ladder, and print the tables of data/sandbox/README.md.

    python -m benchmarks.sandbox.measured [NAME …]    whole gates: all, or those named
    python -m benchmarks.sandbox.measured canaries    the canaries alone, along more rungs

The rungs are the reference with one thing rounded, as BF16 values: its routed experts to nearest in groups of 32, or
(for the canaries) its head to FP8 in blocks of 128 by 128. They are made in the working state and belong to no family.
"""

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from benchmarks.sandbox.ladder import LADDER_BITS, fp8_blocks, make_rung, round_to_integers
from q36eval.app.cli.options import load_policy, open_history
from q36eval.app.cli.progress import ConsoleProgress
from q36eval.app.figures.evals import group_rows, seconds_by_group
from q36eval.app.targets import load_family, resolve
from q36eval.config import Family, Paths
from q36eval.history import History, RunRecord
from q36eval.records import Interval, Measurement, ProbeName
from q36eval.reports.evals_figures import EvalsFigures
from q36eval.run.measure import measure
from q36eval.run.request import Request, Target

COLUMNS = (
    ("KL, nats/token", "kl.kl_divergence[all]"),
    ("perplexity", "evals.perplexity[all]"),
    ("MMLU form", "evals.accuracy[mmlu]"),
    ("short answers", "evals.accuracy[short_answers]"),
    ("RULER form", "evals.accuracy[ruler]"),
    ("failures, structured", "canaries.failure_rate[structured]"),
    ("failures, freeform", "canaries.failure_rate[freeform]"),
    ("must-pass flips", "canaries.must_pass_flips[all]"),
)
CANARY_RUNG_BITS = (8, 4, 3, 2)
CANARY_COLUMNS = (
    ("failures", "canaries.failure_rate[all]"),
    ("margin ratio", "canaries.decisive_margin_ratio[all]"),
    ("right numbers, wrong conclusion", "canaries.right_numbers_wrong_conclusion[all]"),
    ("must-pass flips", "canaries.must_pass_flips[all]"),
    ("unstable", "canaries.must_pass_unstable[all]"),
)


def row(run: RunRecord, history: History) -> str:
    """One branch as a row of the Markdown table: each figure with the interval of its effect."""
    measurements = {measurement.key: measurement for measurement in history.measurements(run.id)}
    cells = [_cell(measurements.get(key)) for _, key in COLUMNS]
    lanes = "" if run.report is None else ", ".join(f"{lane.lane} {lane.verdict}" for lane in run.report.lanes)
    return f"| `{run.branch}` | " + " | ".join(cells) + f" | {lanes} |"


def _cell(measurement: Measurement | None) -> str:
    if measurement is None:
        return "not measured"
    interval = measurement.effect_interval
    if measurement.estimator == "census":
        return f"{measurement.value:g} of {measurement.counts.scored}"
    bounds = f"[{interval.lower:.3g}, {interval.upper:.3g}]"
    if measurement.estimator == "mean":
        return f"{measurement.value:.3g} {bounds}"
    if measurement.estimator == "perplexity":
        ratio = f"{measurement.effect:.4f} [{interval.lower:.4f}, {interval.upper:.4f}]"
        return f"{measurement.value:.4f} (ratio {ratio})"
    return f"{measurement.value:.1%} ({measurement.effect:+.3f} {bounds})"


def evals_of(run: RunRecord, history: History) -> list[dict[str, str]]:
    """A branch's eval groups and its suite as rows of a second table."""
    figures = EvalsFigures(history.measurements(run.id))
    seconds = seconds_by_group(history.items(run.id, ProbeName.EVALS), figures)
    return [{"branch": f"`{run.branch}`", **cells} for cells in group_rows(figures, seconds)]


def _rung(reference: Path, folder: Path, bits: int) -> Path:
    """The reference with routed experts rounded to `bits` bits, as a complete checkpoint folder."""
    return make_rung(
        reference, folder, lambda name: ".mlp.experts." in name, lambda tensor: round_to_integers(tensor, bits)
    )


def targets(family: Family, paths: Paths) -> list[Target]:
    """Every branch of the family, and the rungs that are none."""
    reference = resolve(family.reference, family, paths)
    rungs = [
        Target(f"int{bits}-rung", _rung(reference.folder, paths.state / "ladder" / f"int{bits}", bits))
        for bits in LADDER_BITS
        if bits > 2  # the branch int2-experts is the third rung
    ]
    return [*(resolve(name, family, paths) for name in family.branches), *rungs]


def main(names: Collection[str] = ()) -> None:
    """Gate every branch and rung, or those named, against the reference and print the table."""
    paths = Paths.default()
    family = load_family("sandbox", paths)
    history, policy = open_history(paths), load_policy(None, family, paths)
    reference = resolve(family.reference, family, paths)
    print("| branch | " + " | ".join(title for title, _ in COLUMNS) + " | verdict |", flush=True)
    print("|---" * (len(COLUMNS) + 2) + "|", flush=True)
    eval_rows: list[dict[str, str]] = []
    for target in targets(family, paths):
        if names and target.name not in names:
            continue
        request = Request(
            family=family,
            branch=target,
            reference=reference,
            suite=family.suite,
            policy=policy,
            exhaustive=True,  # a gate would stop where the verdict stands; this table shows what all evidence says
        )
        with ConsoleProgress() as progress:
            run = measure(request, paths, history, progress)
        print(row(run, history), flush=True)
        eval_rows += evals_of(run, history)
    header = list(eval_rows[0]) if eval_rows else []
    for cells in (header, ["---"] * len(header), *(list(cells.values()) for cells in eval_rows)):
        print(f"| {' | '.join(cells)} |", flush=True)


def canary_row(run: RunRecord, history: History) -> str:
    """One branch as a row: every figure with the interval of its effect, and the seconds the run took."""
    measured = {measurement.key: measurement for measurement in history.measurements(run.id)}
    cells = [_canary_cell(measured.get(key)) for _, key in CANARY_COLUMNS]
    seconds = "" if run.finished is None else f"{(run.finished - run.started).total_seconds():.0f}"
    return f"| `{run.branch}` | " + " | ".join([*cells, seconds]) + " |"


def _canary_cell(measurement: Measurement | None) -> str:
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


def canary_targets(family: Family, paths: Paths) -> Iterator[Target]:
    """Every branch, then the rungs of the ladder."""
    reference = resolve(family.reference, family, paths)
    yield from (resolve(name, family, paths) for name in family.branches)
    ladder = paths.state / "ladder"
    head = make_rung(reference.folder, ladder / "fp8-head", lambda name: "lm_head" in name, fp8_blocks)
    yield Target("fp8-head-rung", head)
    for bits in CANARY_RUNG_BITS:
        yield Target(f"int{bits}-rung", _rung(reference.folder, ladder / f"int{bits}", bits))


def canaries() -> None:
    """Measure the canaries of every branch and rung, and print the table."""
    paths = Paths.default()
    family = load_family("sandbox", paths)
    history, reference = open_history(paths), resolve(family.reference, family, paths)
    print("| branch | " + " | ".join(title for title, _ in CANARY_COLUMNS) + " | seconds |", flush=True)
    print("|---" * (len(CANARY_COLUMNS) + 2) + "|", flush=True)
    for target in canary_targets(family, paths):
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
        print(canary_row(run, history), flush=True)


if __name__ == "__main__":
    canaries() if sys.argv[1:] == ["canaries"] else main(sys.argv[1:])
