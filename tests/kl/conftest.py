"""The sandbox's reference, opened once."""

from typing import Any

import pytest

from tests.kl.comparing import SANDBOX


@pytest.fixture(scope="session")
def bf16() -> Any:
    from q36eval.engines import open_engine

    return open_engine(SANDBOX)
