"""Outside a terminal every wait is told: what is done, how much of it, how fast, and what remains."""

import re
import time
from collections.abc import Iterator

import pytest

from q36eval.app.cli import progress as module
from q36eval.app.cli.options import Quiet
from q36eval.app.cli.progress import ConsoleProgress
from q36eval.probes import Within

PATIENCE_S = 60.0


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConsoleProgress]:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.02)
    with ConsoleProgress() as progress:
        yield progress


def line_with(pattern: str, captured: pytest.CaptureFixture[str]) -> str:
    """The first line that is written from now on and fits."""
    until, text = time.monotonic() + PATIENCE_S, ""
    while time.monotonic() < until:
        text += captured.readouterr().err
        for line in text.split("\n")[:-1]:
            if re.search(pattern, line):
                return line
        time.sleep(0.01)
    raise AssertionError(f"no line like {pattern!r} in {text!r}")


def test_a_stage_with_counts_says_how_many_how_fast_what_remains_and_what_is_waited_for(
    shown: ConsoleProgress, capfd: pytest.CaptureFixture[str]
) -> None:
    assert line_with("so far", capfd) == "preparing, under 5 s so far"
    shown.stage("capturing the reference", 5699)
    assert line_with("items", capfd) == "capturing the reference: 5,699 items"
    shown.advance(1140)
    line = line_with("a second", capfd)
    assert re.fullmatch(
        r"capturing the reference: 1,140 of 5,699 \(20%\), [\d.e+]+ a second, under 5 s so far, remaining: ≈ .+", line
    )
    shown.expect("needles", 1000)
    shown.worked("needles", 200, 0.5)
    assert "remaining: needles ≈ " in line_with("needles", capfd)
    shown.stage("capturing the reference", 200)
    inner = Within(shown)
    inner.stage("capturing the reference", 260)
    inner.within("answer tokens", 12, 40)
    assert "0 of 200 (0%), capturing the reference 0 of 260, answer tokens 12 of 40" in line_with("tokens", capfd)
    inner.within("answer tokens", 40, 40)
    line_with("the reference 0 of 260$", capfd)
    shown.within("layer", 40, 40)
    line_with("so far", capfd)


@pytest.mark.parametrize("quiet", [False, True])
def test_nothing_is_written_once_it_is_over_or_where_quiet_is_wanted(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", 0.01)
    monkeypatch.setattr(Quiet, "wanted", quiet)
    with ConsoleProgress() as progress:
        progress.stage("measuring the branch", 3)
        if not quiet:
            line_with("0 of 3", capfd)
        thread = progress._lines
    capfd.readouterr()
    assert (thread is None) is quiet
    assert thread is None or not thread.is_alive()
    assert capfd.readouterr().err == ""
