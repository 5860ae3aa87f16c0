"""The mean over a fixed list of items: known at the end, bounded before it, and never the population's."""

from itertools import permutations

import numpy as np
import pytest

from q36eval.gate import Criterion, Policy
from q36eval.gate import Margin as GateMargin
from q36eval.records import Clusters, Direction, Lane, ProbeName, Schedule
from q36eval.stats import margin_test, planned_clusters
from q36eval.stats._contrast import columns_of
from q36eval.stats._fixed import FixedMean
from tests.q36eval.stats.evidence import Margin, items

HIGHER = Direction.HIGHER_IS_BETTER


def paired(branch, reference, planned: int, block_items: int = 50) -> Clusters:
    blocks = tuple(i // block_items for i in range(len(branch)))
    schedule = Schedule(largest=1, blocks=blocks, planned={"": planned_clusters([1.0] * planned, 1)})
    return items(branch, reference, schedule=schedule)


def test_once_every_item_is_evaluated_their_mean_is_known() -> None:
    reference, branch = [1] * 200, [0] * 5 + [1] * 195
    for limit, inside in ((0.024, False), (0.026, True)):
        for margin in (Margin("max_increase", limit), Margin("min_recovery", 1 - limit)):
            test = margin_test(
                paired(branch, reference, 200), "paired_mean", margin, direction=HIGHER, these_items=True
            )
            assert (test.p_pass, test.p_fail) == ((0.0, 1.0) if inside else (1.0, 0.0))
            assert "these 200 items alone" in test.loss_interval.method
    population = margin_test(
        paired(branch, reference, 200), "paired_mean", Margin("max_increase", 0.026), direction=HIGHER
    )
    assert population.p_pass > 0.025, "of the population that they stand for they show no such thing"


@pytest.mark.long
@pytest.mark.parametrize("block_items", [1, 2])
def test_under_the_margin_no_look_expects_to_win(block_items: int) -> None:
    """All orders of a list whose loss is exactly the margin: the wealth expected after every block is at most 1."""
    losses, margin = (1, 0, 0, 0, 1, 0), 1 / 3
    for upto in range(block_items, len(losses), block_items):
        wealth = []
        for order in permutations(range(len(losses))):
            clusters = paired([1 - losses[i] for i in order[:upto]], (1,) * upto, len(losses), block_items)
            mean = FixedMean(columns_of(clusters), (-1.0, 1.0), float(len(losses)), early=True)
            contrast = mean.columns.contrast(*mean.weights)
            wealth.append(np.exp(mean._log_wealth(margin, 1.0, contrast.units, contrast.sums, contrast.counts)))
        assert np.mean(wealth) <= 1.0 + 1e-9
        assert np.mean(wealth) > 0.5, "a bet that nothing is staked on shows nothing"


def test_exactly_the_margin_is_neither_and_a_part_of_the_items_says_nothing() -> None:
    for count, lost in ((1_000, 70), (700, 49)):
        whole = paired([0] * lost + [1] * (count - lost), [1] * count, count)
        test = margin_test(whole, "paired_mean", Margin("min_recovery", 0.93), direction=HIGHER, these_items=True)
        assert (test.p_pass, test.p_fail) == (1.0, 1.0)
    part = whole.model_copy(update={"schedule": whole.schedule.model_copy(update={"partial": True})})
    with pytest.raises(ValueError, match="--max-items"):
        margin_test(part, "paired_mean", Margin("min_recovery", 0.93), direction=HIGHER, these_items=True)
    unplanned = whole.model_copy(update={"schedule": None})
    with pytest.raises(ValueError, match="planned and recorded"):
        margin_test(unplanned, "paired_mean", Margin("min_recovery", 0.93), direction=HIGHER, these_items=True)


def test_without_replacement_fewer_items_decide() -> None:
    rng = np.random.default_rng(1)
    reference = np.ones(2_000)
    branch = reference.copy()
    branch[rng.choice(2_000, 10, replace=False)] = 0.0
    margin = Margin("max_increase", 0.02)
    early = [
        margin_test(paired(branch[:n], reference[:n], 2_000), "paired_mean", margin, direction=HIGHER, these_items=True)
        for n in (100, 400, 1_200)
    ]
    assert early[0].p_pass > 0.025 > early[2].p_pass
    assert early[0].loss_interval.upper > early[1].loss_interval.upper > early[2].loss_interval.upper


def test_a_policy_never_mixes_the_two() -> None:
    def criterion(name: str, estimand: str) -> Criterion:
        return Criterion(
            id=name,
            probe=ProbeName.EVALS,
            metric="accuracy",
            slice="mmlu",
            margin=GateMargin(kind="min_recovery", value=0.99, source="a test"),
            lanes=tuple(Lane),
            estimand=estimand,
        )

    assert Policy(name="one", criteria=(criterion("a", "these_items"), criterion("b", "these_items")))
    with pytest.raises(ValueError, match="by another estimand"):
        Policy(name="two", criteria=(criterion("a", "these_items"), criterion("b", "population")))
    unbounded = Clusters(units=(5,), branch=(1.0,), reference=(1.0,), errored=(0,))
    with pytest.raises(ValueError, match="bounded values"):
        margin_test(unbounded, "perplexity", Margin("min_retention", 0.9), these_items=True)
