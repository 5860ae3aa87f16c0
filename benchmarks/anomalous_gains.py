"""How often the gate calls a gain anomalous: of branches without loss, at the boundary, and of ones that gain more.

`python -m benchmarks.anomalous_gains [--branches N]`: a table of shares, at the release policy's sizes and margins.
Every row draws branches of which the true gain is known, and judges them as `decide` does after all items were asked;
with `--looks` they are asked block by block and stopped as the gate stops.
"""

import argparse
from dataclasses import dataclass

import numpy as np

from q36eval.gate import Criterion, CriterionVerdict, Margin, Policy, PolicyRule, decide
from q36eval.records import Clusters, Counts, Direction, Estimator, Lane, Measurement, ProbeName, Schedule
from q36eval.stats import loss_limit, planned_clusters, summarize

FLIPS = (0.0, 0.01, 0.02, 0.04, 0.06)
GAINS = (0.0, 1.0, 2.0, 3.0)
"""In margins: none, the boundary, more."""
BLOCKS = 14


@dataclass(frozen=True)
class Case:
    """One criterion at its size: the reference's share of right answers, and its margin."""

    name: str
    items: int
    right: float
    kind: str
    margin: float

    def criterion(self) -> Criterion:
        recovery = self.kind == "min_recovery"
        return Criterion(
            id="judged",
            probe=ProbeName.EVALS if recovery else ProbeName.CANARIES,
            metric="accuracy" if recovery else "failure_rate",
            margin=Margin.model_validate({"kind": self.kind, "value": self.margin, "source": "simulated"}),
            lanes=(Lane.FREEFORM,),
        )


CASES = (
    Case("MMLU", 14_042, 0.8, "min_recovery", 0.99),
    Case("RULER, all lengths", 7_800, 0.8, "min_recovery", 0.98),
    Case("RULER at 128k", 1_300, 0.8, "min_recovery", 0.97),
    Case("failures, structured", 3_800, 0.9, "max_increase", 0.02),
    Case("failures, freeform", 2_200, 0.9, "max_increase", 0.03),
)


def drawn(case: Case, flips: float, gain: float, rng: np.random.Generator) -> Measurement:
    """The evidence of a branch that changes that share of answers beside what it gains, half of them each way.

    `gain` is in margins; what is gained are answers that the reference has wrong, drawn item by item.
    """
    limit = loss_limit(case.criterion().margin)
    more = gain * limit * (case.right if case.kind == "min_recovery" else 1.0)
    right = rng.random(case.items) < case.right
    lost = right & (rng.random(case.items) < flips / 2 / case.right)
    gained = ~right & (rng.random(case.items) < min(1.0, (flips / 2 + more) / (1 - case.right)))
    better = case.kind == "min_recovery"
    branch = (right & ~lost) | gained
    columns = (branch, right) if better else (~branch, ~right)
    n = case.items
    clusters = Clusters(
        units=(1,) * n,
        branch=tuple(columns[0].astype(float)),
        reference=tuple(columns[1].astype(float)),
        errored=(0,) * n,
        bounds=(0.0, 1.0),
    )
    estimator: Estimator = "paired_mean" if better else "paired_proportions"
    value, reference_value, effect, interval = summarize(clusters, estimator)
    criterion = case.criterion()
    return Measurement(
        probe=criterion.probe,
        metric=criterion.metric,
        unit="fraction",
        direction=Direction.HIGHER_IS_BETTER if better else Direction.LOWER_IS_BETTER,
        estimator=estimator,
        value=value,
        reference_value=reference_value,
        effect=effect,
        effect_interval=interval,
        counts=Counts(total=n, scored=n, errored=0),
        clusters=clusters,
    )


def whole(case: Case, measurement: Measurement) -> Measurement:
    """The evidence as the probes lay it out: evals in blocks with a planned end, canaries for one look."""
    return looked_at(measurement, max(1, case.items // BLOCKS))[-1] if case.kind == "min_recovery" else measurement


def shares(case: Case, flips: float, gain: float, branches: int, rng: np.random.Generator) -> tuple[float, float]:
    """Of so many branches the share that is called anomalous, and the share that passes."""
    policy = Policy(name="simulated", criteria=(case.criterion(),))
    results = [decide(policy, [whole(case, drawn(case, flips, gain, rng))]).criteria[0] for _ in range(branches)]
    anomalous = sum(result.anomalous for result in results)
    passed = sum(result.verdict is CriterionVerdict.PASS for result in results)
    return anomalous / branches, passed / branches


def looked_at(measurement: Measurement, size: int) -> list[Measurement]:
    """The evidence after every block of so many items, the last one whole."""
    clusters = measurement.clusters
    assert clusters is not None
    n = len(clusters.units)
    ends = [*range(size, n, size), n]
    planned = {"": planned_clusters(clusters.units, 1)}
    looks = []
    for end in ends:
        schedule = Schedule(largest=1, blocks=tuple(i // size for i in range(end)), planned=planned)
        columns = {name: getattr(clusters, name)[:end] for name in ("units", "branch", "reference", "errored")}
        seen = clusters.model_copy(update={**columns, "schedule": schedule})
        counts = Counts(total=end, scored=end, errored=0)
        looks.append(measurement.model_copy(update={"clusters": seen, "counts": counts}))
    return looks


def stopped(case: Case, flips: float, gain: float, branches: int, rng: np.random.Generator) -> tuple[float, float]:
    """Asked block by block until the gate's rule is content: the share called anomalous, and of the items asked."""
    policy = Policy(name="simulated", criteria=(case.criterion(),))
    rule, anomalous, evaluated = PolicyRule(policy), 0, 0
    for _ in range(branches):
        looks = looked_at(drawn(case, flips, gain, rng), max(1, case.items // BLOCKS))
        seen = next((look for look in looks if rule.resolved_early([look])), looks[-1])
        anomalous += decide(policy, [seen]).criteria[0].anomalous
        evaluated += seen.counts.scored
    return anomalous / branches, evaluated / branches / case.items


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--branches", type=int, default=200)
    parser.add_argument("--looks", action="store_true", help="ask block by block, and stop as the gate does")
    arguments = parser.parse_args()
    branches, looks = arguments.branches, arguments.looks
    rng = np.random.default_rng(16)
    if looks:
        print(f"anomalous / items asked, % of {branches} branches each, {BLOCKS} blocks; gain in margins")
        for case in (case for case in CASES if case.kind == "min_recovery"):
            for flips in FLIPS[::2]:
                pairs = (stopped(case, flips, gain, branches, rng) for gain in GAINS)
                columns = " ".join(
                    f"{f'{100 * anomalous:.1f} / {100 * evaluated:.0f}':>14}" for anomalous, evaluated in pairs
                )
                print(f"{case.name:<22} {flips:>6.0%} {columns}", flush=True)
        return
    print(f"anomalous / PASS, % of {branches} branches each; gain in margins")
    print(f"{'criterion':<22} {'flips':>6} " + " ".join(f"{f'gain {gain:g}':>14}" for gain in GAINS))
    for case in CASES:
        for flips in FLIPS:
            cells = (shares(case, flips, gain, branches, rng) for gain in GAINS)
            columns = " ".join(f"{f'{100 * anomalous:.1f} / {100 * passed:.1f}':>14}" for anomalous, passed in cells)
            print(f"{case.name:<22} {flips:>6.0%} {columns}", flush=True)


if __name__ == "__main__":
    main()
