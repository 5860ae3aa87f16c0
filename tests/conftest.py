"""What holds for every test."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.profiles import LONG, UNTIL
from tests.slowest import costly, fixtures_of, function_of

# examples of the quick profile are the same each time; those of the long one are new
settings.register_profile("quick", derandomize=True, deadline=None)
settings.register_profile("long", deadline=None)
settings.load_profile("long" if LONG else "quick")


def pytest_configure() -> None:
    """Ctrl-C means what it means in a terminal, also where a shell started this in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what draws examples as sized, what takes long as costly; each process begins with files of slow tests.

    Work stealing first deals every worker one stretch of the list, as many tests long as the others', and then moves
    tests from the end of one to another: what is left for the end must be short.
    """
    known = costly()
    core = [item for item in items if item.get_closest_marker("core") is not None]
    fixtures = known["fixture"] - {fixture for item in core for fixture in fixtures_of(item)}
    for item in items:
        is_costly = function_of(item) in known["test"] or not fixtures.isdisjoint(fixtures_of(item))
        if is_costly and item.get_closest_marker("core") is None:
            item.add_marker(pytest.mark.costly)
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.sized)
        is_long = item.get_closest_marker("long") is not None
        if is_long and LONG:
            item.add_marker(pytest.mark.timeout(1800))  # an engine that starts takes minutes by itself
        elif is_long:
            item.add_marker(pytest.mark.skip(reason="in the long profile: make test-long"))
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [tests for tests in files.values() if any(test.get_closest_marker("slow") for test in tests)]
    quick = [test for tests in files.values() if tests not in slow for test in tests]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    stretches = [[test for tests in slow[number::workers] for test in tests] for number in range(workers)]
    for number, stretch in enumerate(stretches):
        wanted = len(items) * (number + 1) // workers - sum(map(len, stretches[:number]))
        take = max(0, wanted - len(stretch))
        stretch += quick[:take]
        del quick[:take]
    items[:] = [*(test for stretch in stretches for test in stretch), *quick]


def pytest_collection_finish() -> None:
    """What was imported stays to the end: half a million objects that no collection need look at again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("out of time")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What errors in a test errors again at once; a test that is about pauses looks at them itself."""
    monkeypatch.setattr("q36eval.engines.retrying.pause", lambda seconds: None)
