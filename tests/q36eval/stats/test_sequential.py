"""Looking after every block: valid under optional stopping, the verdict that the gate gives, few items."""

import numpy as np
import pytest

from q36eval.records import Clusters, Direction, Schedule
from q36eval.stats import margin_test, planned_largest
from tests.q36eval.stats.evidence import items
from tests.q36eval.stats.simulated_looks import margin_looks
from tests.q36eval.stats.simulated_suites import (
    RECOVERY,
    Margin,
    Scenario,
    Suite,
    draw,
    judged,
    kinds,
    margin_row,
    z_test,
)

HIGHER = Direction.HIGHER_IS_BETTER
SMALL = Suite(np.array([300, 200, 150, 120, 100, 80, 60, 50, 40]), np.array([1, 1, 1, 1, 1, 1, 3, 3, 3]), 50)
LIMIT = 0.03


def paired(branch, reference, units, blocks, largest) -> Clusters:
    return items(branch, reference, units, schedule=Schedule(largest=largest, blocks=tuple(map(int, blocks))))


def asked_until(counts, look: int) -> Clusters:
    """The clusters of one simulated gate after a look."""
    found = kinds(SMALL)
    rows = [(kind, block) for block in range(look + 1) for kind, n in enumerate(counts[block]) for _ in range(int(n))]
    kind, blocks = np.array(rows).T
    columns = (column[kind] for column in (found.branch, found.reference, found.units))
    return paired(*columns, blocks, int(found.largest))


@pytest.mark.parametrize("margin", [Margin("max_increase", 0.03), Margin("min_recovery", 0.97)])
def test_simulated_looks_are_the_margin_test_on_what_was_asked(margin: Margin) -> None:
    counts = draw(SMALL, Scenario(0.06, 0.01, margin), 2, np.random.default_rng(1))
    p_pass, p_fail = margin_looks(kinds(SMALL), margin)(counts)
    for gate, look in ((0, 0), (0, 9), (1, len(SMALL.blocks) - 1)):
        test = margin_test(asked_until(counts[gate], look), "paired_mean", margin, direction=HIGHER)
        assert (test.p_pass, test.p_fail) == pytest.approx((p_pass[gate, look], p_fail[gate, look]), rel=1e-9)


@pytest.mark.parametrize("flips", [0.0, 0.04])
def test_continuous_looking_errs_no_more_than_promised(flips: float) -> None:
    margin = Margin("max_increase", LIMIT)
    counts = draw(SMALL, Scenario(flips, LIMIT, margin), 2000, np.random.default_rng(2))
    verdicts, _ = judged(margin_looks(kinds(SMALL), margin), SMALL.asked, counts)
    # 2.5 % promised; 3.6 % is three standard errors above that
    assert (verdicts == 1).mean() <= 0.036
    assert (verdicts == -1).mean() <= 0.036
    peeking, _ = judged(z_test(SMALL, LIMIT), SMALL.asked, counts)
    assert (peeking == 1).mean() > 0.2


def test_a_cluster_not_yet_asked_is_a_fair_bet_whatever_its_size() -> None:
    """Under H0 the wealth expected after one more block is what it was: caps and bets know nothing of its answers."""
    margin = Margin("max_increase", 0.1)
    past = [(1, 0), (2, 0), (1, 0), (3, 0)] * 30  # units, block
    sizes = [units for units, _ in past] + [9] * 20
    largest = planned_largest(sizes)
    assert largest == 9

    def p_values(lost: list[int], gained: list[int]):
        units = [u for u, _ in past] + [9] * len(lost)
        branch = [0.5 * u for u, _ in past] + [4.0 - x + y for x, y in zip(lost, gained, strict=True)]
        reference = [0.5 * u for u, _ in past] + [4.0] * len(lost)
        blocks = [n // 40 for n in range(len(past))] + [3] * len(lost)
        return margin_test(paired(branch, reference, units, blocks, largest), "paired_mean", margin, direction=HIGHER)

    before = p_values([], []).p_pass
    # the margin exactly: 0.9 items of nine are lost on average, in two ways
    for chance, lost in ((0.3, 3), (0.9, 1)):
        after = chance / p_values([lost], [0]).p_pass + (1 - chance) / p_values([0], [0]).p_pass
        assert after == pytest.approx(1 / before, rel=1e-9)
    pairs = [((a, b), (0.3 if a else 0.7) * (0.3 if b else 0.7)) for a in (0, 3) for b in (0, 3)]
    after = sum(chance / p_values(list(lost), [0, 0]).p_pass for lost, chance in pairs)
    assert after == pytest.approx(1 / before, rel=1e-9)


def test_clusters_larger_than_planned_weigh_as_much_as_the_largest() -> None:
    margin = Margin("max_increase", 0.1)
    rows = [1] * 200
    small = margin_test(paired(rows, rows, rows, [0] * 200, 1), "paired_mean", margin, direction=HIGHER)
    thrice = [3] * 200
    large = margin_test(paired(thrice, thrice, thrice, [0] * 200, 1), "paired_mean", margin, direction=HIGHER)
    assert large.p_pass == pytest.approx(small.p_pass, rel=1e-12)


def test_a_bound_agrees_with_the_verdict_and_order_changes_no_bit() -> None:
    rng = np.random.default_rng(3)
    for margin in (Margin("max_increase", 0.02), Margin("min_recovery", 0.97)):
        for loss in (0.0, 0.02, 0.05):
            reference = (rng.random(600) < 0.8).astype(float)
            branch = np.where(rng.random(600) < 0.02 + loss, 1 - reference, reference)
            blocks = np.arange(600) // 50
            order = rng.permutation(600)
            columns = (branch, reference, np.ones(600, dtype=int), blocks)
            test = margin_test(paired(*columns, 1), "paired_mean", margin, direction=HIGHER)
            assert (test.p_pass <= 0.025) == (test.loss_interval.upper < test.limit)
            assert (test.p_fail <= 0.025) == (test.loss_interval.lower > test.limit)
            shuffled = paired(*(column[order] for column in columns), 1)
            assert margin_test(shuffled, "paired_mean", margin, direction=HIGHER) == test


def test_an_mmlu_sized_branch_without_loss_is_settled_by_few_items_and_passes_oftener() -> None:
    """With bets alone 17.7 % of the items settled 2 % flips, and 85 to 94 % of branches with 6 % flips passed."""
    passed, _, evaluated = margin_row(Scenario(0.02, 0.0, RECOVERY), 200, 5, by_margin=True)
    assert evaluated <= 0.17  # 15.8 % (benchmarks/README.md); 200 gates know it to 0.3 points, one standard error
    assert passed == 1.0
    passed, _, evaluated = margin_row(Scenario(0.06, 0.0, RECOVERY), 200, 6, by_margin=True)
    assert evaluated <= 0.45
    assert passed >= 0.93
