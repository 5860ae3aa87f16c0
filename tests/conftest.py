"""What holds for every test."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.areas import LEAST, Areas, least_numbers
from tests.loopback_hub import Hub, loopback_hub
from tests.profiles import LONG, UNTIL

SANDBOX = Path(__file__).parents[1] / "data" / "sandbox" / "bf16"

# examples of the quick profile are the same each time; those of the long one are new
settings.register_profile("quick", derandomize=True, deadline=None)
settings.register_profile("long", deadline=None)
settings.load_profile("long" if LONG else "quick")
os.environ.pop("GITHUB_ACTIONS", None)  # a gate in a test annotates no job that runs the tests


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check-areas", action="store_true", help="fail where an area ran fewer tests than it must")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C means what it means in a terminal, also where a shell started this in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # the process that hears of every test
        least = least_numbers(LEAST.read_text(encoding="utf-8")) if config.getoption("--check-areas") else {}
        config.pluginmanager.register(Areas(least), "areas")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that draw examples as sized, and gives long tests time: an engine takes minutes to start."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.sized)
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.timeout(1800))


def pytest_collection_finish() -> None:
    """What was imported stays to the end: half a million objects that no collection need look at again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("out of time")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The sandbox's; not to be changed."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SANDBOX, local_files_only=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What errors in a test errors again at once; a test that is about pauses looks at them itself."""
    monkeypatch.setattr("q36eval.engines.retries.pause", lambda seconds: None)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub on loopback that this process finds, and an empty cache."""
    with loopback_hub() as running:
        running.use(monkeypatch, tmp_path / "home")
        yield running
