"""What holds for every test."""

import pytest


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What errors in a test errors again at once; a test that is about pauses looks at them itself."""
    monkeypatch.setattr("q36eval.engines.retrying.pause", lambda seconds: None)
