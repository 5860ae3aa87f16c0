"""CPU seconds of tests and fixtures, children included: `pytest -p tests.slowest --cpu-seconds table.tsv`.

Wall time misleads on a machine that does other work; CPU time does not. Each process appends its rows:
kind (test or fixture), CPU seconds, file, name. A fixture's time is in the time of the test that asked first, too.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def cpu_seconds() -> float:
    """What this process and its finished children have used so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", type=Path, help="append CPU seconds of tests and fixtures to this file")


def _write(config: pytest.Config, kind: str, seconds: float, file: str, name: str) -> None:
    table: Path | None = config.getoption("--cpu-seconds")
    if table is not None:
        with table.open("a") as out:
            out.write(f"{kind}\t{seconds:.3f}\t{file}\t{name}\n")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        _write(item.config, "test", cpu_seconds() - before, item.location[0], item.location[2])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[None]:
    before = cpu_seconds()
    try:
        return (yield)
    finally:
        spent = cpu_seconds() - before
        if spent > 0.05:
            _write(request.config, "fixture", spent, fixturedef.func.__code__.co_filename, fixturedef.argname)
