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
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from q36eval.stats import Kinds, Looker, margin_looks, planned_largest

Array = NDArray[np.float64]

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
SCORE = 0.85
MARGIN = 0.0085
ALPHA = 0.025
CHUNK = 100


@dataclass(frozen=True)
class Margin:
    """What a policy says."""

    kind: str
    value: float


POINTS, RECOVERY = Margin("max_increase", MARGIN), Margin("min_recovery", 1.0 - MARGIN / SCORE)


@dataclass(frozen=True)
class Scenario:
    """A branch that changes `flips` of its answers, half each way, and loses `loss` of all answers beyond that."""

    flips: float
    loss: float
    margin: Margin = POINTS
    concentration: float = 2.0

    @property
    def lost(self) -> float:
        """The share of items that turn wrong."""
        return self.flips / 2 + self.loss

    @property
    def gained(self) -> float:
        """The share of items that turn right."""
        return self.flips / 2


@dataclass(frozen=True)
class Suite:
    """How many clusters each stratum has [strata], and of how many items each is."""

    clusters: NDArray[np.int64]
    items: NDArray[np.int64]
    block_items: int = BLOCK_ITEMS

    @cached_property
    def blocks(self) -> NDArray[np.int64]:
        """Clusters [blocks, strata], each block with each stratum's share as nearly as whole clusters allow."""
        strata = np.repeat(np.arange(len(self.clusters)), self.clusters)
        rng = np.random.default_rng(3)
        places = [(np.arange(count) + rng.random()) / count for count in self.clusters]
        order = np.argsort(np.concatenate(places), kind="stable")
        block = (np.cumsum(self.items[strata[order]]) - 1) // self.block_items
        counts = np.zeros((int(block.max()) + 1, len(self.clusters)), dtype=np.int64)
        np.add.at(counts, (block, strata[order]), 1)
        return counts

    @cached_property
    def asked(self) -> Array:
        """The share of all items asked by the end of each block."""
        items = np.cumsum(self.blocks @ self.items).astype(np.float64)
        return items / items[-1]


MMLU = Suite(np.array([*SUBJECTS, *PASSAGES]), np.ones(len(SUBJECTS) + len(PASSAGES), dtype=np.int64))
WITH_PASSAGES = Suite(
    np.array([*SUBJECTS, *(size // PASSAGE_ITEMS for size in PASSAGES)]),
    np.array([1] * len(SUBJECTS) + [PASSAGE_ITEMS] * len(PASSAGES)),
)


def kinds(suite: Suite, *, by_block: bool = True, last_look: bool = True) -> Kinds:
    """Per cluster size: lost, gained, right on both, wrong on both."""
    sizes = np.unique(suite.items).astype(np.float64)
    branch, reference = np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])
    largest = float(planned_largest(np.repeat(suite.items, suite.clusters).tolist()))
    columns = (np.outer(sizes, column).ravel() for column in (branch, reference, np.ones(4)))
    cut = (suite.clusters * np.maximum(suite.items - largest, 0)).sum() / (suite.clusters @ suite.items)
    return Kinds(*columns, largest, by_block, cut_share=float(cut), last_look=last_look, right_share=SCORE)


def draw(suite: Suite, scenario: Scenario, gates: int, rng: np.random.Generator) -> Array:
    """Counts [gates, blocks, kinds] of branches of one scenario."""
    weights = suite.clusters * suite.items / (suite.clusters @ suite.items)
    lost = _uneven(scenario.lost, SCORE, scenario.concentration, weights, gates, rng)
    gained = _uneven(scenario.gained, 1.0 - SCORE, scenario.concentration, weights, gates, rng)
    rates = np.stack([lost, gained, SCORE - lost, 1.0 - SCORE - gained], axis=-1)
    sizes, size = np.unique(suite.items, return_inverse=True)
    counts = np.zeros((gates, len(suite.blocks), 4 * len(sizes)))
    for stratum, clusters in enumerate(suite.blocks.T):
        held = np.flatnonzero(clusters)
        drawn = rng.multinomial(clusters[held], rates[:, None, stratum])
        counts[:, held, 4 * size[stratum] : 4 * size[stratum] + 4] += drawn
    return counts


def _uneven(
    mean: float, most: float, concentration: float, weights: Array, gates: int, rng: np.random.Generator
) -> Array:
    """Rates [gates, strata] of the given mean over the suite, drawn again where one lies above `most`."""
    rates = np.full((gates, len(weights)), np.inf)
    while (beyond := (rates > most).any(axis=1)).any():
        drawn = rng.gamma(concentration, size=(int(beyond.sum()), len(weights)))
        rates[beyond] = mean * drawn / (drawn @ weights)[:, None]
    return rates


def z_test(suite: Suite, margin: float = MARGIN) -> Looker:
    """p-values of the paired difference's normal approximation, as if each look were the only one."""
    from scipy.stats import norm

    answer_kinds = kinds(suite)
    losses = answer_kinds.reference - answer_kinds.branch

    def looks(counts: Array) -> tuple[Array, Array]:
        so_far = np.cumsum(counts, axis=1)
        items, total = so_far @ answer_kinds.units, so_far @ losses
        errors = np.sqrt(np.maximum(so_far @ losses**2 - total**2 / items, 1e-9)) / items
        z = (total / items - margin) / errors
        return norm.cdf(z), norm.sf(z)

    return looks


@dataclass(frozen=True)
class Outcome:
    """Shares of gates that PASS and FAIL, the mean share of items asked and its standard error."""

    gates: int
    passed: float
    failed: float
    asked: float
    asked_error: float


def judged(looker: Looker, suite: Suite, counts: Array, criteria: int = 1) -> tuple[NDArray[np.int64], Array]:
    """Each gate's verdict [gates] (1 PASS, -1 FAIL, 0 neither) and the share of items it had asked when settled."""
    p_pass, p_fail = looker(counts)
    inside, outside = p_pass <= ALPHA, criteria * p_fail <= ALPHA
    stops = inside | outside
    at = np.where(stops.any(axis=1), stops.argmax(axis=1), stops.shape[1] - 1)
    gates = np.arange(len(at))
    return np.where(inside[gates, at], 1, np.where(outside[gates, at], -1, 0)), suite.asked[at]


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
    "repeated z-test": lambda suite, _: z_test(suite),
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
            by_rule[name].append(judged(looker, suite, counts, criteria))
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
