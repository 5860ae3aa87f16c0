"""What a pattern is refused for is the work it makes, not how long a busy machine lets it wait."""

import time
from typing import Any

import pytest

from q36eval.checkpoints import patterns
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises

HONEST = r"experts\.\d+\.(gate|up|down)_proj$"
NAME = "model.layers.3.mlp.experts.4.up_proj"


class Waiting:
    """A compiled pattern in a process that others keep from the processor: it waits, and works hardly at all."""

    def __init__(self, interrupted: int = 0) -> None:
        self.interrupted = interrupted

    def match(self, name: str, timeout: float) -> object:
        time.sleep(0.02)
        if self.interrupted:
            self.interrupted -= 1
            raise TimeoutError
        return name

    search = match


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns._slow.clear()
    monkeypatch.setattr(patterns, "SECONDS_IN_ALL", 0.05)


@pytest.mark.parametrize("interrupted", [0, 3])
def test_a_pattern_that_waits_for_the_processor_is_not_slow(interrupted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the limit itself runs out meanwhile: a machine that sleeps, a process that is stopped."""
    waiting: Any = Waiting(interrupted)
    monkeypatch.setattr(patterns, "_compiled", lambda pattern: waiting)
    assert all(matches_pattern(HONEST, NAME) for _ in range(8))


def test_a_pattern_that_works_without_end_is_refused_and_not_tried_again() -> None:
    endless, name = r"(?:\w|\.|[a-z])+\Z(?<=[0-9])", NAME * 3
    begun = time.thread_time()
    for _ in range(100):
        with raises(CorruptCheckpointError, "pattern-too-slow"):
            matches_pattern(endless, name)
    assert patterns._slow[endless] > patterns.SECONDS_IN_ALL
    assert time.thread_time() - begun < 100 * patterns.SECONDS, "once, not for every name"


def test_one_that_never_gets_the_processor_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: Any = Waiting(interrupted=10**6)
    monkeypatch.setattr(patterns, "_compiled", lambda pattern: waiting)
    with raises(CorruptCheckpointError, "pattern-too-slow"):
        matches_pattern(HONEST, NAME)


def test_many_slow_patterns_share_their_time_and_a_quick_one_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SECONDS_OF_ALL_PATTERNS", 0.1)
    monkeypatch.setattr(patterns, "SECONDS_ALONE", 0.01)
    patterns._slow.update({f"slow {number}": 0.04 for number in range(3)})
    patterns._slow["slow once"] = 0.002
    with raises(CorruptCheckpointError, "pattern-too-slow"):
        matches_pattern("slow 0", NAME)
    assert not matches_pattern("slow once", NAME)
    assert matches_pattern(HONEST, NAME, anywhere=True)
