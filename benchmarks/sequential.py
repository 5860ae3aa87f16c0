"""How a gate that looks after every block errs, and how many items it asks, by simulation.

`python -m benchmarks.sequential` prints a Markdown table. The suite is as large as MMLU: its 57 subjects with the sizes
of their test sets, 14,042 items, asked in blocks with each subject's share; "with passages", three items at a time of
the three history subjects are one cluster and flip together. Each simulated branch flips at rates of its own in every
subject, gamma distributed (shape 2, or 0.3 where it says "very uneven") and scaled so that the mean over the suite is
the scenario's exactly. Beside the gate's rule: the same with constant bets alone, the margin test taken once over
everything, and a z-test repeated after every block.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.q36eval.stats.simulated_looks import Looker, margin_looks
from tests.q36eval.stats.simulated_suites import (
    CHUNK,
    MARGIN,
    RECOVERY,
    Array,
    Margin,
    Scenario,
    Suite,
    draw,
    judged,
    kinds,
    z_test,
)

# fmt: off
SUBJECTS = (
    100, 135, 152, 100, 265, 144, 100, 100, 100, 173, 102, 100, 235, 114, 145, 378, 126, 100, 310, 203, 100, 198, 193,
    390, 270, 238, 151, 545, 216, 223, 131, 121, 108, 163, 112, 103, 234, 100, 783, 346, 895, 306, 311, 324, 282, 1534,
    272, 612, 110, 245, 201, 100, 166, 171,
)
# fmt: on
"""Items of the MMLU test sets whose questions stand alone (Hendrycks et al., arXiv 2009.03300)."""

PASSAGES = (165, 204, 237)
"""Those of European, United States and world history, which ask several questions about one passage."""

PASSAGE_ITEMS = 3
BLOCK_ITEMS = 70

MMLU = Suite(np.array([*SUBJECTS, *PASSAGES]), np.ones(len(SUBJECTS) + len(PASSAGES), dtype=np.int64), BLOCK_ITEMS)
WITH_PASSAGES = Suite(
    np.array([*SUBJECTS, *(size // PASSAGE_ITEMS for size in PASSAGES)]),
    np.array([1] * len(SUBJECTS) + [PASSAGE_ITEMS] * len(PASSAGES)),
    BLOCK_ITEMS,
)


@dataclass(frozen=True)
class Outcome:
    """Shares of gates that PASS and FAIL, the mean share of items asked and its standard error."""

    gates: int
    passed: float
    failed: float
    asked: float
    asked_error: float


def once(looker: Looker) -> Looker:
    """One look, after the last block."""

    def looks(counts: Array) -> tuple[Array, Array]:
        p_pass, p_fail = looker(counts.sum(axis=1, keepdims=True))
        early = np.ones((len(counts), counts.shape[1] - 1))
        return np.hstack([early, p_pass]), np.hstack([early, p_fail])

    return looks


Rules = dict[str, Callable[[Suite, Margin], Looker]]

RULES: Rules = {
    "q36eval": lambda suite, margin: margin_looks(kinds(suite), margin),
    "bets alone": lambda suite, margin: margin_looks(kinds(suite, last_look=False), margin),
    "one look at everything": lambda suite, margin: once(
        margin_looks(kinds(suite, by_block=False, last_look=False), margin)
    ),
    "repeated z-test": lambda suite, _: z_test(suite, MARGIN),
}


def simulate(
    scenario: Scenario, gates: int, seed: int, rules: Rules = RULES, suite: Suite = MMLU, criteria: int = 1
) -> dict[str, Outcome]:
    """The same branches under every rule."""
    rng = np.random.default_rng(seed)
    lookers = {name: rule(suite, scenario.margin) for name, rule in rules.items()}
    by_rule: dict[str, list[tuple[NDArray[np.int64], Array]]] = {name: [] for name in rules}
    for start in range(0, gates, CHUNK):
        counts = draw(suite, scenario, min(CHUNK, gates - start), rng)
        for name, looker in lookers.items():
            by_rule[name].append(judged(looker, suite.asked, counts, criteria))
    return {name: outcome(parts) for name, parts in by_rule.items()}


def outcome(parts: list[tuple[NDArray[np.int64], Array]]) -> Outcome:
    verdicts, evaluated = (np.concatenate(column) for column in zip(*parts, strict=True))
    error = float(evaluated.std() / np.sqrt(len(evaluated)))
    return Outcome(
        len(evaluated), float((verdicts == 1).mean()), float((verdicts == -1).mean()), float(evaluated.mean()), error
    )


def scenarios() -> Iterator[tuple[str, Scenario, Suite]]:
    """What the table holds."""
    for flips in (0.0, 0.02, 0.04, 0.06):
        yield f"no loss, {flips:.0%} flips", Scenario(flips, 0.0), MMLU
    for flips in (0.0, 0.02, 0.04, 0.06):
        yield f"exactly the margin, {flips:.0%} flips", Scenario(flips, MARGIN), MMLU
    for flips in (0.02, 0.04, 0.06):
        yield f"three margins, {flips:.0%} flips", Scenario(flips, 3 * MARGIN), MMLU
    for flips, loss in ((0.02, 0.0), (0.06, 0.0), (0.02, MARGIN), (0.02, 3 * MARGIN)):
        yield f"recovery of 99 %, loss {loss:.2%}, {flips:.0%} flips", Scenario(flips, loss, RECOVERY), MMLU
    for flips, loss in ((0.02, 0.0), (0.06, 0.0), (0.02, MARGIN), (0.06, MARGIN), (0.06, 3 * MARGIN)):
        yield f"with passages, loss {loss:.2%}, {flips:.0%} flips", Scenario(flips, loss), WITH_PASSAGES
    for flips in (0.0, 0.04):
        yield f"very uneven, exactly the margin, {flips:.0%} flips", Scenario(flips, MARGIN, concentration=0.3), MMLU


def _share(count_share: float, gates: int) -> str:
    """A share and its exact 95 % interval (Clopper and Pearson, Biometrika 26 (1934), 404-413)."""
    from scipy.stats import binomtest

    interval = binomtest(round(count_share * gates), gates).proportion_ci(0.95, "exact")
    return f"{100 * count_share:.1f} ({100 * interval.low:.1f} to {100 * interval.high:.1f})"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=4_000)
    parser.add_argument("--only", default="", help="the branches whose name holds this")
    parser.add_argument("--criteria", type=int, default=1, help="how many criteria share the alpha of FAIL")
    arguments = parser.parse_args()
    print(f"{int(MMLU.clusters @ MMLU.items):,} items, {len(MMLU.blocks)} looks, {arguments.gates:,} gates, %\n")
    print("| branch | rule | PASS | FAIL | items asked |\n|---|---|---|---|---|")
    chosen = [row for row in enumerate(scenarios()) if arguments.only in row[1][0]]
    for number, (name, scenario, suite) in chosen:
        for rule, result in simulate(
            scenario, arguments.gates, number, suite=suite, criteria=arguments.criteria
        ).items():
            shares = " | ".join(_share(share, result.gates) for share in (result.passed, result.failed))
            items = f"{100 * result.asked:.1f} ± {100 * result.asked_error:.1f}"
            print(f"| {name} | {rule} | {shares} | {items} |", flush=True)


if __name__ == "__main__":
    main()
