"""What a set of items can show, against the margin test itself."""

import pytest

from q36eval.records import Direction, Schedule
from q36eval.stats import as_expected, can_show
from tests.q36eval.stats.evidence import Margin as Limit

HIGHER = Direction.HIGHER_IS_BETTER


def test_a_margin_tighter_than_the_items_can_show_is_known_before_they_are_asked() -> None:
    blocks = Schedule(largest=1, blocks=tuple(n // 70 for n in range(525)))
    items = as_expected([1] * 525, 0.9).model_copy(update={"schedule": blocks})
    assert sum(items.branch) == pytest.approx(0.9 * 525, abs=1)
    assert can_show(items, Limit("min_recovery", 0.95), confidence=0.975, direction=HIGHER)
    assert not can_show(items, Limit("min_recovery", 0.99), confidence=0.975, direction=HIGHER)
