"""What drawing items by the reference's margin saves, and that it errs no more, by simulation at MMLU's size.

`python -m benchmarks.draws_by_margin` prints a Markdown table: 14,042 items, 200 a block, a recovery of 99 % asked of a
reference that gets 85 % right. Beside draws by margin: the same looks over blocks that hold every item at its share,
and bets alone, which is what decided before.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.sequential import ALPHA, CHUNK, MARGIN, MMLU, RECOVERY, SCORE, Outcome, Scenario, outcome, simulate
from benchmarks.sequential import kinds as plain_kinds
from q36eval.evals.blocks import Allocation
from q36eval.stats import DEFAULT_SHARES, Kinds, LookShares, margin_looks

Array = NDArray[np.float64]

MARGIN_SPREAD = 3.0
"""Standard deviation of the reference's margins in nats; only their ranks matter."""


def margin_row(
    scenario: Scenario, gates: int, seed: int, *, by_margin: bool, shares: LookShares = DEFAULT_SHARES
) -> Outcome:
    """Branches of an MMLU-sized suite whose items are drawn by the reference's margin, 200 a block.

    Every `CHUNK` gates have margins of their own, for the items are a sample too. Flips follow the margin (normal noise
    that exceeds it), and so does the loss, or with `by_margin` False it is as likely at every right answer.
    """
    from scipy.special import ndtri

    rng = np.random.default_rng(seed)
    verdicts, evaluated = [], []
    for start in range(0, gates, CHUNK):
        margins = rng.normal(ndtri(SCORE), 1.0, 14_042) * MARGIN_SPREAD
        plan = Allocation.of(np.abs(margins), 200.0)
        assert plan is not None
        counts = margin_counts(plan, rates_of(margins, scenario, by_margin=by_margin), min(CHUNK, gates - start), rng)
        looker = margin_looks(margin_kinds(plan), scenario.margin, shares)
        p_pass, p_fail = looker(counts)
        inside, outside = p_pass <= ALPHA, p_fail <= ALPHA
        stops = inside | outside
        at = np.where(stops.any(axis=1), stops.argmax(axis=1), stops.shape[1] - 1)
        each = np.arange(len(at))
        verdicts.append(np.where(inside[each, at], 1, np.where(outside[each, at], -1, 0)))
        items = np.cumsum(counts[0].sum(axis=-1))
        evaluated.append(items[at] / items[-1])
    return outcome(list(zip(verdicts, evaluated, strict=True)))


def rates_of(margins: Array, scenario: Scenario, *, by_margin: bool) -> Array:
    """Probabilities [items, 4] that each item is lost, gained, right on both sides, wrong on both."""
    from scipy.special import ndtr

    right = margins > 0
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if ndtr(-np.abs(margins) / middle).mean() < max(scenario.flips, 1e-4) else (low, middle)
        )
    noise = ndtr(-np.abs(margins) / high) if scenario.flips else np.zeros_like(margins)
    lost, gained = np.where(right, noise, 0.0), np.where(right, 0.0, noise)
    if scenario.flips:
        lost, gained = (each * scenario.flips / 2 / each.mean() for each in (lost, gained))
    harm = right * (ndtr(-np.abs(margins) / MARGIN_SPREAD * 8) if by_margin else 1.0)
    lost = np.minimum(lost + scenario.loss * harm / harm.mean(), right)
    gained = np.minimum(gained, ~right)
    return np.stack([lost, gained, right - lost, ~right - gained], axis=-1)


def margin_counts(plan: Allocation, rates: Array, gates: int, rng: np.random.Generator) -> Array:
    """Counts [gates, blocks, strata * 4]: the blocks drawn by margin, and everything else as one block more."""
    counts = np.bincount(plan.stratum)
    means = np.stack([rates[plan.stratum == stratum].mean(axis=0) for stratum in range(len(counts))])
    means /= means.sum(axis=-1, keepdims=True)
    first = [rng.multinomial(n, p, size=(gates, plan.blocks)) for n, p in zip(plan.drawn, means, strict=True)]
    rest = [
        rng.multinomial(n, p, size=(gates, 1)) for n, p in zip(counts - plan.drawn * plan.blocks, means, strict=True)
    ]
    return np.concatenate([np.concatenate(each, axis=-1) for each in (first, rest)], axis=1).astype(np.float64)


def margin_kinds(plan: Allocation) -> Kinds:
    strata = len(plan.drawn)
    columns = [np.tile(column, strata) for column in ([0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0], [1.0] * 4)]
    weights, rates = np.repeat(plan.weights, 4), np.repeat(plan.rates, 4)
    largest = float(plan.weights.max())
    return Kinds(
        *columns, largest, weights=weights, expected_changes=rates, last_bet=plan.blocks - 1, right_share=SCORE
    )


def scenarios() -> Iterator[tuple[str, Scenario, bool]]:
    """What the table holds; False where the loss does not follow the margin."""
    for flips in (0.0, 0.02, 0.04, 0.06):
        yield f"no loss, {flips:.0%} flips", Scenario(flips, 0.0, RECOVERY), True
    for flips, loss in ((0.03, 0.003), (0.04, 0.004)):
        yield f"{loss:.1%} lost, {flips:.0%} flips", Scenario(flips, loss, RECOVERY), True
    for by_margin, words in ((True, "by margin"), (False, "at every right answer alike")):
        for flips in (0.0, 0.02, 0.04, 0.06):
            yield f"exactly the margin, lost {words}, {flips:.0%} flips", Scenario(flips, MARGIN, RECOVERY), by_margin
        yield f"three margins, lost {words}, 4% flips", Scenario(0.04, 3 * MARGIN, RECOVERY), by_margin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=4_000)
    parser.add_argument("--only", default="", help="the branches whose name holds this")
    arguments = parser.parse_args()
    print(f"{arguments.gates:,} gates a row: PASS %, FAIL %, items evaluated %\n")
    print("| branch | drawn by margin | in proportion | bets alone |\n|---|---|---|---|")
    rules = {
        "in proportion": lambda suite, margin: margin_looks(plain_kinds(suite), margin),
        "bets alone": lambda suite, margin: margin_looks(plain_kinds(suite, last_look=False), margin),
    }
    for number, (name, scenario, by_margin) in enumerate(scenarios()):
        if arguments.only not in name:
            continue
        outcomes = [margin_row(scenario, arguments.gates, number, by_margin=by_margin)]
        outcomes += simulate(scenario, arguments.gates, number, rules, MMLU).values()
        cells = [f"{100 * o.passed:.1f}, {100 * o.failed:.1f}, {100 * o.asked:.1f}" for o in outcomes]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
