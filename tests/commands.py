"""The command line within this process, which has imported what the commands need: only the start is spared."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click


def q36eval(
    *arguments: str, state: Path, code: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What the program of that name does with these arguments, its exit code, which is `code`, and what it wrote."""
    from q36eval.app.cli import main

    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, {"Q36EVAL_STATE": str(state), **environment}),
        mock.patch.object(sys, "argv", ["q36eval", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as left:
            ended = left.code
    assert isinstance(ended, int)
    assert code in (None, ended), err.getvalue()
    return subprocess.CompletedProcess(arguments, ended, out.getvalue(), err.getvalue())


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The real program in a process of its own."""
    command = [sys.executable, "-c", "from q36eval.app.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def command_tree() -> dict[str, click.Command]:
    """Every command and group of the program by what a user types; the program itself first."""
    from q36eval.app.cli.main import program

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        for each, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {each}", child)

    return dict(walk("q36eval", program()))


def code_of(ended: subprocess.CompletedProcess[str]) -> str:
    """The code of the error that a command ended with, in the last line that it wrote; empty where there is none."""
    line = (ended.stderr.splitlines() or [""])[-1]
    return line.rpartition("[")[2].removesuffix("]") if line.endswith("]") else ""
