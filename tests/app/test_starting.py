"""While a command is imported it says so, and from then on whoever tells of the work is alone."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

SLOW = """
import sys, time
from q36eval import startup_lines
startup_lines.SECONDS_BETWEEN_LINES = 0.05

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "q36eval.app.cli.main":
            time.sleep(0.4)

sys.meta_path.insert(0, Slow())
from q36eval.__main__ import main
main()
"""


def said(*arguments: str) -> tuple[list[str], int]:
    """Lines on stderr of the command, with an import that takes 0.4 s, and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stderr.splitlines(), done.returncode


def test_lines_are_written_from_the_first_moment_and_end_with_the_start() -> None:
    lines, code = said("policy", "no-such-command")
    starts = [line for line in lines if line.startswith("preparing, ")]
    assert len(starts) >= 3
    assert lines[: len(starts)] == starts  # nothing of it after what the command says
    assert code == 2


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_nobody_who_wants_only_the_verdict_hears_of_it(flag: str) -> None:
    lines, _ = said("policy", "no-such-command", flag)
    assert not [line for line in lines if line.startswith("preparing")]
