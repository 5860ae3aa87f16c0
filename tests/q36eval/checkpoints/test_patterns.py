"""A pattern that takes too long is refused, once and for all names."""

import time

import pytest

from q36eval.checkpoints import patterns
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.errors import CorruptCheckpointError
from tests.raising import raises

NAME = "model.layers.3.mlp.experts.4.up_proj"


def test_a_pattern_that_works_without_end_is_refused_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SECONDS", 0.5)
    endless, name = r"(?:\w|\.|[a-z])+\Z(?<=[0-9])", NAME * 3
    begun = time.thread_time()
    for _ in range(100):
        with raises(CorruptCheckpointError, "pattern-too-slow"):
            matches_pattern(endless, name)
    assert time.thread_time() - begun < 100 * patterns.SECONDS, "once, not for every name"
    assert matches_pattern(r"experts\.\d+\.(gate|up|down)_proj$", NAME, anywhere=True)
