"""A pattern that takes too long is refused, once and for all names."""

import time

import pytest

from q36eval.checkpoints import patterns
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises

HONEST = r"experts\.\d+\.(gate|up|down)_proj$"
NAME = "model.layers.3.mlp.experts.4.up_proj"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns._slow.clear()
    monkeypatch.setattr(patterns, "SECONDS", 0.5)


def test_a_pattern_that_works_without_end_is_refused_and_not_tried_again() -> None:
    endless, name = r"(?:\w|\.|[a-z])+\Z(?<=[0-9])", NAME * 3
    begun = time.thread_time()
    for _ in range(100):
        with raises(CorruptCheckpointError, "pattern-too-slow"):
            matches_pattern(endless, name)
    assert time.thread_time() - begun < 100 * patterns.SECONDS, "once, not for every name"


def test_slow_patterns_share_their_time_and_a_quick_one_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SECONDS_OF_ALL_PATTERNS", 0.1)
    monkeypatch.setattr(patterns, "SECONDS_ALONE", 0.01)
    patterns._slow.update({f"slow {number}": 0.04 for number in range(3)} | {"slow once": 0.002})
    with raises(CorruptCheckpointError, "pattern-too-slow"):
        matches_pattern("slow 0", NAME)
    assert matches_pattern(HONEST, NAME, anywhere=True)
    assert not matches_pattern("slow once", NAME)
