"""The process in vLLM's environment: start, requests, and end; its output is kept to explain a crash."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from q36eval.engines.vllm.environment import Environment, environment_there
from q36eval.errors import EngineError

PREFIX = "q36eval-vllm-"
SHARED_MEMORY, STATES_BYTES = Path("/dev/shm"), 4 * 2**30
LAST_LINES = 3
ERROR = re.compile(r"\b\w+(Error|Exception): ")
"""The line of a Python traceback with the error."""
SECONDS_TO_END = 10.0
DEFAULT_VARIABLES = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
CPU_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""Defaults unless the user's own environment sets them: nothing is fetched or reported, and a CPU uses 1 GiB of KV
cache."""


class AskError(Exception):
    """A request without an answer; the next may succeed."""


class Asked:
    """A request to a running program, and its answer once available."""

    def __init__(self, process: "WorkerProcess", what: str) -> None:
        self._process, self.what = process, what
        self._line: str | None = None

    def wait(self) -> None:
        """Block until the answer is available."""
        if self._line is None:
            self._line = self._process.read_line()

    def answer(self) -> Mapping[str, Any]:
        """The answer; raises as `WorkerProcess.ask`."""
        self.wait()
        if not self._line:
            raise EngineError("engine-died", f"vLLM ended while {self.what}: {self._process.last_lines()}")
        answer: dict[str, Any] = json.loads(self._line)
        if "error" not in answer:
            return answer
        if answer["fatal"]:
            raise EngineError(
                "engine-failed", f"vLLM failed while {self.what}: {answer['error']}; {self._process.last_lines()}"
            )
        raise AskError(answer["error"])


class WorkerProcess:
    """A running `q36eval_vllm.worker`. One request at a time."""

    _asked: Asked | None = None
    """The request that is not answered yet."""

    def __init__(self, environment: Environment) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.states = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_in_memory()))
        self._log = self.folder / "log.txt"
        ours, theirs = socket.socketpair()
        variables = DEFAULT_VARIABLES | (CPU_VARIABLES if environment.on_cpu else {})
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [environment.python, "-P", "-m", "q36eval_vllm.worker", str(theirs.fileno()), str(self.states)],
                pass_fds=[theirs.fileno()],
                env=variables | environment_there(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is forwarded by us: vLLM would print its own messages
            )
        self._reader, self._writer = ours.makefile("r", encoding="utf-8"), ours.makefile("w", encoding="utf-8")
        self.close = weakref.finalize(
            self, _end, self._process, ours, self._reader, self._writer, self.folder, self.states
        )

    def ask(self, do: str, what: str, **message: Any) -> Mapping[str, Any]:
        """The answer to one request; `what` describes in a message what is lost if the engine dies.

        Raises:
            AskError: the engine refused it, and continues.
            EngineError: the engine is gone; gives the cause, and its last lines.
        """
        return self.begin(do, what, **message).answer()

    def begin(self, do: str, what: str, **message: Any) -> "Asked":
        """Send a request without waiting for its answer. An earlier request is answered first."""
        line = json.dumps({"do": do, **message}) + "\n"  # serialized while the program is still busy: it may be long
        if self._asked is not None:
            self._asked.wait()
        self._asked = asked = Asked(self, what)
        with suppress(OSError, ValueError):  # an unsent request gets no answer
            self._writer.write(line)
            self._writer.flush()
        return asked

    def read_line(self) -> str:
        """The next answer; empty if the process is gone."""
        self._asked = None
        try:
            return self._reader.readline()
        except (OSError, ValueError):
            return ""

    def last_lines(self) -> str:
        """The first error that it printed, which causes the later ones; or its last lines."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        errors = [line.strip() for line in lines if ERROR.search(line)]
        return " / ".join(line[-300:] for line in errors[:1] or lines[-LAST_LINES:]) or "it printed nothing"


def _in_memory() -> Path | None:
    """An in-memory file system, if it has room for some windows' states; else the folder of temporary files."""
    with suppress(OSError):
        if os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).free >= STATES_BYTES:
            return SHARED_MEMORY
    return None


def _end(process: "subprocess.Popen[bytes]", ours: socket.socket, reader: Any, writer: Any, *folders: Path) -> None:
    """Close our end, after which the program ends; if it does not, it is killed with its child processes."""
    for each in (reader, writer, ours):
        with suppress(OSError, ValueError):
            each.close()
    try:
        process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
