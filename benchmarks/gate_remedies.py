"""What a suite's items can show of each criterion alone, and what a branch without loss would need to PASS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.simulated_evidence import Shape, blocks_of
from q36eval.gate import Criterion, Policy
from q36eval.records import Direction, Estimator, Schedule
from q36eval.stats import Power, as_expected, loss_limit, power

FLIPS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06)


def remedies(policy: Policy, shape: Shape) -> Iterator[str]:
    """How often each criterion passes a branch without loss, what would make it 99 % of them, and at how many margins
    95 % of branches FAIL, for every rate of flips."""
    yield "| criterion | items, margin | flips | PASS, % | items for 99 % | or margin | 95 % FAIL at, margins |"
    yield f"|{'---|' * 7}"
    for criterion in policy.criteria:
        if criterion.tier == "blocking" and criterion.metric in ("accuracy", "failure_rate"):
            expected = Expected(policy, shape, criterion)
            for flips in FLIPS:
                yield f"| {criterion.id} | {' | '.join(expected.cells(flips))} |"


ENOUGH = 0.99
"""Of each criterion, so that all together pass 95 %."""

MORE_ITEMS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Expected:
    """What one criterion can show, by `q36eval.stats.power`; scores of a part count as the share that is right."""

    policy: Policy
    shape: Shape
    criterion: Criterion

    def cells(self, flips: float) -> tuple[str, ...]:
        """The columns of `remedies` after the first."""
        items, margin = self.items, self.criterion.margin.value
        now = self.power(items, margin, flips, (0.95,))
        lost = now.detected[0.95]
        margins = "more than all" if lost is None else f"{lost / loss_limit(self.criterion.margin):.2f}"
        row = (f"{items}, {margin:g}", f"{flips:.0%}", f"{100 * now.passes:.1f}")
        return (*row, *(("–", "–") if now.passes >= ENOUGH else self._needed(flips)), margins)

    def _needed(self, flips: float) -> tuple[str, str]:
        items, margin = self.items, self.criterion.margin.value
        more = [round(items * factor / 25) * 25 for factor in MORE_ITEMS]
        step = -0.01 if self.criterion.margin.kind == "min_recovery" else 0.01
        wider = [round(margin + step * count, 3) for count in range(1, 11)]
        enough = (n for n in more if self.power(n, margin, flips).passes >= ENOUGH)
        wide = (value for value in wider if self.power(items, value, flips).passes >= ENOUGH)
        return str(next(enough, f"more than {more[-1]}")), f"{next(wide, float('nan')):g}"

    @property
    def items(self) -> int:
        """As the sandbox asks."""
        if self.criterion.metric == "accuracy":
            return sum(items for _, items in self.shape.accuracy[self.criterion.slice])
        return self.shape.failure_rate[self.criterion.slice][0]

    def power(self, items: int, margin: float, flips: float, probabilities: Sequence[float] = ()) -> Power:
        """Of so many items under that margin."""
        paired, direction = self.criterion.metric == "accuracy", Direction.HIGHER_IS_BETTER
        estimator: Estimator = "paired_mean"
        if paired:
            scores = self.shape.accuracy[self.criterion.slice]
            share = sum(score * count for score, count in scores) / sum(count for _, count in scores)
        else:
            questions, failing = self.shape.failure_rate[self.criterion.slice]
            share, direction, estimator = failing / questions, Direction.LOWER_IS_BETTER, "paired_proportions"
        schedule = Schedule(largest=1, blocks=blocks_of(items)) if paired else None
        return power(
            as_expected([1] * items, share, schedule),
            self.criterion.margin.model_copy(update={"value": margin}),
            confidence=self.criterion.confidence,
            alpha=self.policy.alpha,
            criteria=sum(c.tier == "blocking" and c.margin.kind != "max_count" for c in self.policy.criteria),
            direction=direction,
            flips=flips,
            probabilities=probabilities,
            estimator=estimator,
        )
