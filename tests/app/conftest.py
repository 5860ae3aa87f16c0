"""A small noise floor: that its figures are right is shown elsewhere (tests/kl/test_floor.py)."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def small_floor() -> Iterator[None]:
    """Every perturbation scores three documents, where a gate's score 12,000 tokens, which takes ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("q36eval.kl.floor.TOKENS", 1000)
        patch.setattr("q36eval.kl.floor.DOCUMENTS", 3)
        yield
