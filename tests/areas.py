"""Tests by area: how many ran and were skipped, and whether fewer ran than an area must have.

An area is a folder of tests, two levels deep in `tests/q36eval`. The least numbers are in `tests/areas.txt`; they are
checked where all of `make test` is run, by `--check-areas`.
"""

from collections import Counter
from pathlib import Path

import pytest

LEAST = Path(__file__).with_name("areas.txt")


def area_of(nodeid: str) -> str:
    """The area of a test by its id, such as `tests/kl` or `tests/q36eval/stats`."""
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[: 3 if folders[1:2] == ["q36eval"] else 2])


def least_numbers(text: str) -> dict[str, int]:
    """How many tests each area must run at least; lines of area and number."""
    rows = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {area: int(number) for area, number in rows}


def too_few(ran: Counter[str], least: dict[str, int]) -> list[str]:
    """A sentence for each area in which fewer tests ran than its least number, or that has none."""
    few = [
        f"{area}: {ran[area]} tests ran; at least {number} must ({LEAST.name})."
        for area, number in least.items()
        if ran[area] < number
    ]
    unlisted = sorted(ran.keys() - least.keys()) if least else []
    return few + [f"{area}: it has no least number of tests ({LEAST.name})." for area in unlisted]


class Areas:
    """Counts the outcomes of a session, prints them by area and fails it where an area ran too few."""

    def __init__(self, least: dict[str, int]) -> None:
        self.ran: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.least = least

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self.skipped[area_of(report.nodeid)] += 1
        elif report.when == "call":
            self.ran[area_of(report.nodeid)] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and too_few(self.ran, self.least):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("tests by area")
        for area in sorted({*self.ran, *self.skipped}):
            terminalreporter.line(f"{area:32} {self.ran[area]:5} ran {self.skipped[area]:5} skipped")
        for sentence in too_few(self.ran, self.least):
            terminalreporter.line(sentence, red=True)
