"""One real model, served once for all tests of the engine `openai`, in this process's threads over real HTTP."""

from collections.abc import Iterator

import pytest

from q36eval.engines import Engine, EngineSettings, open_engine
from tests.q36eval.openai.server import SANDBOX, Served, serving


@pytest.fixture
def served(local: Engine) -> Served:
    """How it is served, to be changed by a test."""
    return Served(local)


@pytest.fixture
def address(served: Served) -> Iterator[str]:
    """Where it answers."""
    with serving(served) as url:
        yield url


@pytest.fixture
def settings(address: str) -> EngineSettings:
    """The branch as it is served."""
    return EngineSettings(SANDBOX, kind="openai", base_url=address)


@pytest.fixture
def engine(settings: EngineSettings) -> Engine:
    """The branch through its server, as that is at the start of a test."""
    return open_engine(settings)
