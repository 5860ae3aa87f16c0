"""What the items that a probe declares can show of a criterion: computed, so that no policy need type it."""

from dataclasses import dataclass

from q36eval.gate import Criterion, Policy
from q36eval.records import DeclaredFigure, Direction, Schedule
from q36eval.stats import Power, as_expected, power

ASSUMED_SCORE = 0.8
"""Share that the reference is taken to get right where nothing of it was captured yet."""

ASSUMED_SHARES = {
    "accuracy": ASSUMED_SCORE,
    "failure_rate": 0.05,
    "right_numbers_wrong_conclusion": 0.02,
    "schema_accuracy": 0.95,
}
"""Mean score that a reference is taken to have, by metric, while nothing of it is captured."""

FLIPS = 0.04
"""Share of changed answers, half of them each way, of the branch without loss that is told of."""

BLOCK_ITEMS = 300
"""Items between two looks where the figure may be looked at early, as suites ask them."""


@dataclass(frozen=True)
class Shown:
    """What so many `items` show when the reference scores `score` in the mean."""

    items: int
    score: float
    power: Power

    @property
    def sentence(self) -> str:
        """In words, for whoever reads the policy."""
        told = f"{self.items:,} items, taking the reference to score {self.score:.0%}: "
        if not self.power.can_show:
            return told + "not even a branch that answers all as the reference does can pass"
        lost = self.power.detected.get(0.95)
        found = "no loss is failed 19 times in 20" if lost is None else f"a loss of {lost:.1%} is failed 19 times in 20"
        return (
            f"{told}a branch without loss passes 19 times in 20 while it changes up to {self.power.most_flips:.1%} of "
            f"the answers, {self.power.passes:.0%} of them pass at {FLIPS:.0%}, and there {found}"
        )


def power_of(criterion: Criterion, policy: Policy, figure: DeclaredFigure) -> Shown | None:
    """By simulation, seeded; None where chance moves nothing, or it is not known how many items there are.

    Items are taken to weigh the same: where several share a source they show less (`q36eval evals --plan` knows).
    """
    score = ASSUMED_SHARES.get(figure.metric)
    kinds = ("min_recovery", "max_increase")
    if figure.items is None or score is None or criterion.margin.kind not in kinds:
        return None
    sharing = sum(other.tier == criterion.tier and other.margin.kind != "max_count" for other in policy.criteria)
    looks = figure.estimator == "paired_mean"
    schedule = Schedule(largest=1, blocks=tuple(i // BLOCK_ITEMS for i in range(figure.items))) if looks else None
    found = power(
        as_expected([1] * figure.items, score, schedule),
        criterion.margin,
        confidence=criterion.confidence,
        alpha=policy.alpha,
        criteria=max(1, sharing),
        direction=figure.direction,
        flips=FLIPS,
        estimator=figure.estimator,
    )
    reading = score if figure.direction is Direction.HIGHER_IS_BETTER else 1.0 - score
    return Shown(figure.items, reading, found)
