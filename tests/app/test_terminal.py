"""What a person sees in a terminal while a gate runs, at three widths; and that a log gets no escape sequences."""

import io
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from q36eval.app.cli import progress as module
from q36eval.app.cli.progress import ConsoleProgress

ROOT = Path(__file__).parents[2]
TASKS = ("must-pass", "canaries", "kl", "mmlu", "short_answers", "ruler", "perplexity")


def drawn(progress: ConsoleProgress, columns: int) -> list[str]:
    """The lines that are on the screen now."""
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    with console.capture() as captured:
        console.print(progress._progress.get_renderable(), end="")
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]


@pytest.mark.parametrize("columns", [80, 120])
def test_progress_stays_whole_at_any_width(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars and counts are never cut; what remains is one line, which goes when the work ends."""

    def terminal(**_: object) -> Console:
        return Console(file=io.StringIO(), width=columns, height=24, force_terminal=True, _environ={"TERM": "xterm"})

    monkeypatch.setattr(module, "Console", terminal)
    with ConsoleProgress() as progress:
        progress.stage("inspecting the checkpoint", 1)
        progress.advance()
        progress.stage("taking over the answers of run 20261123-011842-2866d2", 14263)
        progress.advance(14263)
        progress.stage("measuring the branch", 14263)
        for task in TASKS:
            progress.expect(task, 100_000)
        progress._told -= 10  # what remains is written once a second
        progress.advance(3000)
        progress.worked("canaries", 2_000, 60.0)
        during = drawn(progress, columns)
    bars = [line for line in during if "━" in line]
    assert [line.split()[-2] for line in bars] == ["1/1", "14263/14263", "3000/14263"]
    assert max(map(cell_len, during)) <= columns
    assert sum("Remaining" in line for line in during) == 1
    after = drawn(progress, columns)
    assert len(after) == len(bars)
    assert not any("Remaining" in line for line in after)
