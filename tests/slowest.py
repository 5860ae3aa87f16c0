"""CPU seconds of tests and fixtures, children included: `pytest -p tests.slowest --cpu-seconds table.tsv`.

Wall time misleads on a machine that does other work; CPU time does not. Each process appends its rows:
kind (test or fixture), CPU seconds, file, name. A fixture's time is in the time of the test that asked first, too.

    python -m tests.slowest table.tsv [table.tsv …] > tests/costly.tsv

writes which functions take more than `COSTLY_SECONDS`, with all of their parameters, and which fixtures: `make
test` leaves them to `make test-rest`, and what asks for such a fixture, but for what is marked `core` and fixtures that
this asks for. What several have in common costs the first that asks: run `make test` with it too, and name both tables.
"""

import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COSTLY = ROOT / "tests" / "costly.tsv"
COSTLY_SECONDS = {"test": 1.0, "fixture": 3.0}
Function = tuple[str, str]
"""File, from the repository's root, and name, of a method with its class."""


def function_of(item: pytest.Item) -> Function:
    """Of a test, whatever its parameters."""
    return item.location[0], item.location[2].partition("[")[0]


def fixtures_of(item: pytest.Item) -> Iterator[Function]:
    """What it asks for, and what those ask for."""
    info = getattr(item, "_fixtureinfo", None)
    for definitions in () if info is None else info.name2fixturedefs.values():
        for each in definitions:
            yield _from_root(each.func.__code__.co_filename), each.argname


def costly() -> dict[str, frozenset[Function]]:
    """What `COSTLY` lists: `test` and `fixture`."""
    found: dict[str, set[Function]] = {"test": set(), "fixture": set()}
    for line in COSTLY.read_text(encoding="utf-8").splitlines():
        kind, _, file, name = line.split("\t")
        found[kind].add((file, name))
    return {kind: frozenset(functions) for kind, functions in found.items()}


def listed(tables: Iterable[Iterable[str]]) -> Iterator[str]:
    """Rows of `COSTLY` from rows of tables: kind, CPU seconds in the table that has most, file, function."""
    most: Counter[tuple[str, str, str]] = Counter()
    for table in tables:
        seconds: Counter[tuple[str, str, str]] = Counter()
        for line in table:
            kind, spent, file, name = line.rstrip("\n").split("\t")
            if kind == "fixture":
                seconds[kind, _from_root(file), name] = max(seconds[kind, _from_root(file), name], float(spent))
            else:
                seconds[kind, file, name.partition("[")[0]] += float(spent)
        most |= seconds
    for (kind, file, name), spent in most.most_common():
        if spent > COSTLY_SECONDS[kind] and file.startswith("tests/"):
            yield "\t".join([kind, f"{spent:.1f}", file, name])


def _from_root(file: str) -> str:
    """A path of this checkout, or of another one, from its root."""
    parts = Path(file).parts
    return "/".join(parts[parts.index("tests") :]) if "tests" in parts else file


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


if __name__ == "__main__":
    for row in listed(Path(table).read_text(encoding="utf-8").splitlines() for table in sys.argv[1:]):
        print(row)
