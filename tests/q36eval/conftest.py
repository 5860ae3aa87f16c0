"""The model behind the tests' servers, opened once."""

import pytest

from q36eval.engines import Engine


@pytest.fixture(scope="session")
def local() -> Engine:
    """The sandbox's reference, which tests serve and compare with what is served."""
    from tests.q36eval.openai.server import SANDBOX, opened  # which imports torch

    return opened(SANDBOX)
