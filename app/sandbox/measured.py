"""Measure the sandbox's branches and the damage ladder, and print the tables of data/sandbox/README.md.

    python -m q36eval.app.sandbox.measured [NAME …]    all, or those named

The rungs INT4, INT3 and INT2 are the reference with its routed experts rounded to nearest in groups of 32, as BF16
values; they are made in the working state and belong to no family.
"""

import sys
from collections.abc import Collection
from pathlib import Path

from q36eval.app.cli.options import load_policy, open_history
from q36eval.app.console import ConsoleProgress
from q36eval.app.evals_model import GROUP_COLUMNS, group_rows, seconds_by_group
from q36eval.app.sandbox.ladder import GROUP, LADDER_BITS, make_rung, round_to_integers
from q36eval.app.targets import load_family, resolve
from q36eval.config import Family, Paths
from q36eval.history import History, RunRecord
from q36eval.records import Measurement, ProbeName
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


def _rung(reference: Path, folder: Path, bits: int) -> Path:
    """The reference with routed experts rounded to `bits` bits, as a complete checkpoint folder."""
    return make_rung(
        reference, folder, lambda name: ".mlp.experts." in name, lambda tensor: round_to_integers(tensor, bits, GROUP)
    )


def row(run: RunRecord, history: History) -> str:
    """One branch as a row of the Markdown table: each figure with the interval of its effect."""
    found = {measurement.key: measurement for measurement in history.measurements(run.id)}
    cells = [_cell(found.get(key)) for _, key in COLUMNS]
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


def evals_of(run: RunRecord, history: History) -> list[str]:
    """A branch's eval groups and its suite as rows of a second table."""
    figures = EvalsFigures(history.measurements(run.id))
    seconds = seconds_by_group(history.items(run.id, ProbeName.EVALS), figures)
    return [f"| `{run.branch}` | " + " | ".join(cells) + " |" for cells in group_rows(figures, seconds)]


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
    family = load_family(None, paths)
    history, policy = open_history(paths), load_policy(None, family, paths)
    reference = resolve(family.reference, family, paths)
    print("| branch | " + " | ".join(title for title, _ in COLUMNS) + " | verdict |", flush=True)
    print("|---" * (len(COLUMNS) + 2) + "|", flush=True)
    eval_rows = []
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
    print("\n| branch | " + " | ".join(GROUP_COLUMNS) + " |")
    print("|---" * (len(GROUP_COLUMNS) + 1) + "|")
    print("\n".join(eval_rows), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
