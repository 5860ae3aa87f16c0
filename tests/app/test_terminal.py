"""What a person sees in a terminal while a gate runs, at three widths: read from a screen that is emulated.

The frames are committed; `Q36EVAL_WRITE_FRAMES=1` writes them anew.
"""

import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from pathlib import Path

import pyte
import pytest

ROOT = Path(__file__).parents[2]
FRAMES = Path(__file__).with_name("frames")
ROWS = 24

RUN = """
import signal
from q36eval.app.cli import progress
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
with progress.ConsoleProgress() as shown:
    shown.stage("inspecting the checkpoint", 1)
    shown.advance()
    shown.stage("taking over the answers of run 20261123-011842-2866d2", 14263)
    shown.advance(14263)
    shown.stage("measuring the branch", 14263)
    for task in ("must-pass", "canaries", "kl", "mmlu", "short_answers", "ruler", "perplexity"):
        shown.expect(task, 100_000)
    shown._told -= 10
    shown.advance(3000)
    shown.worked("canaries", 2_000, 60.0)
    shown._progress.refresh()
    signal.sigwait([signal.SIGUSR1])
print("PASS")
"""


def screens(columns: int) -> tuple[list[str], list[str]]:
    """The screen while the program waits in the middle of its work, and at its end."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", PYTHONPATH=str(ROOT), COLUMNS=str(columns), LINES=str(ROWS))
        os.execv(sys.executable, [sys.executable, "-c", RUN])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    screen = pyte.Screen(columns, ROWS)
    stream, middle = pyte.ByteStream(screen), []
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # so a pseudo-terminal says that its child has ended
            break
        stream.feed(data)
        if not middle and any("Remaining" in line for line in screen.display):
            middle = lines(screen)
            os.kill(child, signal.SIGUSR1)
    assert os.waitpid(child, 0)[1] == 0, screen.display
    return middle, lines(screen)


def lines(screen: pyte.Screen) -> list[str]:
    shown = [re.sub(r"\d:\d\d:\d\d", "0:00:00", line.rstrip()) for line in screen.display]
    return [line for line in shown if line]


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_progress_stays_whole_at_any_width(columns: int) -> None:
    """Bars and counts are never cut; what is left is one line, which goes when the work ends."""
    middle, end = screens(columns)
    text = "\n".join(["while it runs:", *middle, "", "at the end:", *end, ""])
    frame = FRAMES / f"progress-{columns}.txt"
    if os.environ.get("Q36EVAL_WRITE_FRAMES"):
        frame.parent.mkdir(exist_ok=True)
        frame.write_text(text, encoding="utf-8")
    assert text == frame.read_text(encoding="utf-8")
    bars = [line for line in middle if "━" in line]
    assert [line.split()[-2] for line in bars] == ["1/1", "14263/14263", "3000/14263"]
    assert sum("Remaining" in line for line in middle) == 1
    assert not any("Remaining" in line for line in end)
    assert end[-1] == "PASS"
