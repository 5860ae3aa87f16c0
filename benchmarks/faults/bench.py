"""What a fault works with: a folder, copies of checkpoints, a state with a captured reference, the command."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from q36eval.app import sandbox

ROOT = Path(__file__).parents[2]
SANDBOX = ROOT / "data" / "sandbox"
COMMAND = [sys.executable, "-c", "from q36eval.app.cli import main; main()"]
CAPTURING = threading.Lock()
PATIENCE = 300.0
"""Seconds after which a command counts as hung."""

WEIGHTS_POLICY = """\
name: weights
criteria:
  - {id: intact, title: Checkpoint intact, probe: weights, metric: integrity_faults,
     margin: {kind: max_count, value: 0, source: for this campaign}, lanes: [structured, freeform], waivable: false}
"""
KL_POLICY = (
    WEIGHTS_POLICY
    + """\
  - {id: close, title: Close to the reference, probe: kl, metric: kl_divergence, slice: all,
     margin: {kind: max_value, value: 0.5, source: for this campaign}, lanes: [structured, freeform]}
"""
)


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code (negative: the signal that ended it), and what it wrote."""

    exit: int
    stdout: str
    stderr: str

    @property
    def sentence(self) -> str:
        """The last thing it said for people: its one sentence, or the verdict."""
        lines = [line.strip() for line in (self.stderr + "\n" + self.stdout).splitlines() if line.strip()]
        own = [line for line in lines if line.startswith("q36eval: ")]
        verdicts = [line for line in lines if re.search(r"\b(PASS|FAIL|INCONCLUSIVE)\b", line)]
        return (own or verdicts or lines or ["nothing"])[-1].removeprefix("q36eval: ")

    def told(self, exit: int, says: str | None = None) -> str:
        """What was seen, for the table.

        Raises:
            AssertionError: another exit code, a traceback, or `says` (case ignored) is nowhere in what it wrote.
        """
        seen = f"exit {self.exit}: {self.sentence}"
        assert "Traceback" not in self.stderr + self.stdout, f"a traceback; {self.stderr[-600:]}"
        assert self.exit == exit, f"{seen} (expected exit {exit}); {self.stderr[-600:]}"
        if says is not None:
            assert says.lower() in (self.stdout + self.stderr).lower(), f"{seen} (nothing of {says!r})"
        return seen


class Running:
    """A command that still runs, its two streams in files."""

    def __init__(self, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
        self._out, self._err = (folder / f"{time.monotonic_ns()}.{name}" for name in ("out", "err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                arguments, env=environment, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def wait_for(self, what: str | Callable[[], bool]) -> "Running":
        """Until it has written that text to either stream, or that holds.

        Raises:
            AssertionError: it ended before, or nothing came in `PATIENCE` seconds.
        """
        until = time.monotonic() + PATIENCE
        while not (what() if callable(what) else what in self._out.read_text() + self._err.read_text()):
            assert self.process.poll() is None, f"ended before {what}: {self._err.read_text()[-600:]}"
            assert time.monotonic() < until, f"waited in vain for {what}"
            time.sleep(0.02)
        return self

    def send(self, number: signal.Signals, *, group: bool = False) -> "Running":
        """A signal, to the process alone or to all it has started."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        return self

    def end(self) -> Done:
        """Waits for its end."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL, group=True)
            raise AssertionError(f"it hung: {self._err.read_text()[-600:]}") from None
        return Done(code, self._out.read_text(errors="replace"), self._err.read_text(errors="replace"))


class Bench:
    """A fault's own place. `shared` holds what all faults copy: a state with a captured reference and its floor."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder, self._shared = folder, shared
        self.state = folder / "state"
        for name, text in (("weights.yaml", WEIGHTS_POLICY), ("kl.yaml", KL_POLICY)):
            (folder / name).write_text(text, encoding="utf-8")
        self.weights_alone = (
            "--policy",
            folder / "weights.yaml",
            "--skip",
            "kl",
            "--skip",
            "evals",
            "--skip",
            "canaries",
        )
        """Options of a gate that judges the files alone: a second or two."""
        self.small = ("--policy", folder / "kl.yaml", "--corpus", self.corpus, "--skip", "evals", "--skip", "canaries")
        """Options of a gate that measures KL on forty documents: some twenty seconds after `reference()`."""

    @property
    def corpus(self) -> Path:
        """A corpus of the forty shortest of the sandbox's documents."""
        return self._shared / "corpus.yaml"

    def copy(self, name: str) -> Path:
        """A checkpoint of the sandbox, to be damaged."""
        place = self.folder / name
        shutil.copytree(sandbox.build(name, build_dir=self.folder / "built"), place)
        return place

    @staticmethod
    def prepare(shared: Path) -> None:
        """Writes the small corpus; the reference is captured when the first fault asks for it."""
        folder = ROOT / "data" / "corpus" / "sandbox"
        lines = [line for file in sorted(folder.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
        shortest = sorted(lines, key=len)[:40]
        (shared / "texts.jsonl").write_text("\n".join(shortest) + "\n", encoding="utf-8")
        (shared / "corpus.yaml").write_text(
            "name: small\njson_lines: [{path: texts.jsonl}]\non_policy: null\n", encoding="utf-8"
        )

    def reference(self) -> Path:
        """Gives the state what the reference said of the small corpus, and its noise floor; returns the state."""
        source = self._shared / "state"
        with CAPTURING:
            if not (self._shared / "captured").exists():
                self._run("gate", "--branch", "fp8-head", *self.small, state=source).told(exit=0)
                (self._shared / "captured").touch()
        shutil.copytree(source, self.state, ignore=shutil.ignore_patterns("history.sqlite*", "*.lock"))
        return self.state

    def q36eval(self, *arguments: object, **environment: str) -> Done:
        """The command, to its end."""
        return self._run(*arguments, state=self.state, **environment)

    def start(self, *arguments: object, **environment: str) -> Running:
        """The command, in the background."""
        return Running([*COMMAND, *map(str, arguments)], self.environment(**environment), self.folder)

    def bash(self, line: str, *arguments: object, **environment: str) -> Done:
        """A line of bash in which `"$@"` is the command with these arguments: redirections, pipes, limits."""
        command = ["bash", "-c", line, "bash", *COMMAND, *map(str, arguments)]
        return Running(command, self.environment(**environment), self.folder).end()

    def environment(self, **changes: str) -> dict[str, str]:
        """Of the command: this repository, this state; a runner's own variables do not count."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "Q36EVAL_"))}
        return kept | {"PYTHONPATH": str(ROOT), "Q36EVAL_STATE": str(self.state), "COLUMNS": "400"} | changes

    def _run(self, *arguments: object, state: Path, **environment: str) -> Done:
        changes = {"Q36EVAL_STATE": str(state)} | environment
        return Running([*COMMAND, *map(str, arguments)], self.environment(**changes), self.folder).end()
