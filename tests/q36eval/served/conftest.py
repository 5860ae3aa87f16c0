"""The model behind the tests' servers, and what it answers: both once for each file of tests."""

import pytest

from q36eval.engines import Engine
from tests.q36eval.openai.server import SANDBOX, opened


@pytest.fixture(scope="module")
def local() -> Engine:
    """The model that is served."""
    return opened(SANDBOX)


@pytest.fixture(scope="module")
def known() -> dict[object, object]:
    """What it answers, computed once for all tests."""
    return {}
