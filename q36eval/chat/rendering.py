"""Chat templates rendered under limits, in a process of their own: a template is somebody else's program.

One process (`_worker.py`) renders all templates of this one, and is replaced where a template ended it. It is started
by `subprocess`, never forked off, so torch's threads and CUDA are not in it. It ends with this process, however that
ends, since its standard input is closed then; a rendering that is under way has its limit of CPU time.
"""

import atexit
import contextlib
import importlib.util
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.chat._worker import ANSWER, LENGTH, MALFORMED, RENDERED, TOO_LONG, TOO_MUCH_MEMORY
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error

WORKER = Path(__file__).with_name("_worker.py")


@dataclass(frozen=True)
class Limits:
    """What one rendering may take. A prompt of 128k tokens takes a few hundredths of a second and 20 MiB.

    `slow_seconds` is the CPU time of all renderings of a template that take more than a tenth of a second each.
    """

    cpu_seconds: int = 5
    wall_seconds: float = 120.0
    slow_seconds: float = 120.0
    memory_bytes: int = 2**29
    output_bytes: int = 2**18
    """What any prompt may have, and `output_factor` times what is rendered (as it is sent) beside that."""
    output_factor: int = 8


SLOW = 0.1


class TemplateRaisedError(Q36Error):
    """A template does not write this conversation: it raised, or cannot be read. Others it may write."""


class TemplateMalformedError(TemplateRaisedError):
    """It cannot be read, so that it writes no conversation at all."""


class TemplateLimitError(CorruptCheckpointError):
    """A template took more than any needs: nothing is rendered with it any more."""


class Renderer:
    """Renders templates, given as text, one at a time; threads take turns, and a forked process has its own worker.

    Memory is limited on Linux. macOS does not hold to that limit: there CPU time and the length of the output are.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._slow: dict[str, float] = defaultdict(float)
        self._refused: dict[str, str] = {}

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """What the template writes. `variables` are plain data: dictionaries, lists, text, numbers, None.

        Raises:
            TemplateRaisedError: in the template's own words.
            TemplateLimitError: it takes too long, too much memory, or writes too much; the limit is named.
            EngineError: the process cannot be started, or was ended by somebody else.
        """
        with self._lock:
            if template in self._refused:
                raise TemplateLimitError("template-limit", self._refused[template])
            try:
                return self._render(template, variables)
            except TemplateLimitError as error:
                self._refused[template] = str(error)
                raise

    def _render(self, template: str, variables: dict[str, Any]) -> str:
        worker = self._running()
        try:
            seconds, kind, text = worker.ask(template, variables)
        except BaseException:  # an interruption leaves half an answer in the pipe
            self.close()
            raise
        if kind in (TOO_MUCH_MEMORY, TOO_LONG):
            self.close()
            if kind == TOO_LONG:
                raise TemplateLimitError("template-limit", "it writes far more than the conversation that it is given")
            raise TemplateLimitError(
                "template-limit", f"it takes more than {self.limits.memory_bytes >> 20} MiB of memory"
            )
        if seconds > SLOW:
            self._slow[template] += seconds
            if self._slow[template] > self.limits.slow_seconds:
                raise TemplateLimitError(
                    "template-limit", f"its slow renderings take over {self.limits.slow_seconds:g} s of CPU time"
                )
        if kind == MALFORMED:
            raise TemplateMalformedError("template-malformed", text)
        if kind != RENDERED:
            raise TemplateRaisedError("template-raised", text)
        return text

    def _running(self) -> "_Worker":
        if self._worker is None or self._worker.parent != os.getpid():
            self._worker = _Worker(self.limits)
            atexit.unregister(self.close)
            atexit.register(self.close)
        return self._worker

    def close(self) -> None:
        """End the process; the next rendering starts another one."""
        worker, self._worker = self._worker, None
        if worker is not None and worker.parent == os.getpid():
            worker.end()


class _Worker:
    """One process, as long as it lives. `parent` is the process that started it."""

    def __init__(self, limits: Limits) -> None:
        self.parent = os.getpid()
        self._limits = limits
        self._numbers: dict[str, int] = {}
        jinja2 = importlib.util.find_spec("jinja2")
        assert jinja2 is not None, "a requirement of this package"
        assert jinja2.origin is not None, "it is a package of files"
        libraries = str(Path(jinja2.origin).parents[1])
        numbers = (limits.cpu_seconds, limits.memory_bytes)
        command = [sys.executable, "-I", "-S", "-B", str(WORKER), libraries, *map(str, numbers)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError as error:
            raise EngineError(
                "process-not-started",
                f"The process that renders chat templates cannot be started: {error.strerror}; make room for it, and "
                f"run the command again.",
            ) from error

    def ask(self, template: str, variables: dict[str, Any]) -> tuple[float, bytes, str]:
        """CPU seconds, what became of it, and the text.

        Raises:
            TemplateLimitError, EngineError: as `Renderer.render`; the process is of no use any more.
        """
        known = template in self._numbers
        number = self._numbers.setdefault(template, len(self._numbers))
        sent = marshal.dumps(variables)
        most = self._limits.output_bytes + self._limits.output_factor * len(sent)
        request = marshal.dumps((number, None if known else template, most, variables))
        deadline = time.monotonic() + self._limits.wall_seconds
        return self._answered(request, most, deadline)

    def _answered(self, request: bytes, most: int, deadline: float) -> tuple[float, bytes, str]:
        assert self._process.stdin is not None, "it was started with pipes"
        try:
            self._process.stdin.write(LENGTH.pack(len(request)) + request)
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        seconds, kind, length = ANSWER.unpack(self._read(ANSWER.size, deadline))
        if length > 4 * most:
            raise TemplateLimitError("template-limit", "it writes far more than the conversation that it is given")
        return seconds, kind, self._read(length, deadline).decode("utf-8", "surrogatepass")

    def _read(self, count: int, deadline: float) -> bytes:
        assert self._process.stdout is not None, "it was started with pipes"
        descriptor, parts = self._process.stdout.fileno(), []
        while count:
            if not _readable(descriptor, deadline):
                raise self._late()
            part = os.read(descriptor, min(count, 2**20))
            if not part:
                raise self._ended()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _late(self) -> Q36Error:
        self._process.kill()
        return EngineError(
            "render-timeout",  # what computed so long was ended before
            f"Rendering a chat template took more than {self._limits.wall_seconds:g} s, and less than "
            f"{self._limits.cpu_seconds} s of CPU time: this machine is too busy; run the command again.",
        )

    def _ended(self) -> Q36Error:
        """Why it is no more there."""
        status = self._process.wait()
        if status == -signal.SIGXCPU:
            return TemplateLimitError("template-limit", f"it takes more than {self._limits.cpu_seconds} s of CPU time")
        if status in (-signal.SIGSEGV, -signal.SIGABRT):
            return TemplateLimitError("template-limit", "it is nested so deeply that it crashes Python")
        return EngineError(
            "process-died",
            f"The process that renders chat templates ended with status {status}; run the command again, with more "
            f"memory where the system ended it.",
        )

    def end(self) -> None:
        """End it, at once."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):  # what was not sent yet
                if stream is not None:
                    stream.close()
        self._process.wait()


def _readable(descriptor: int, deadline: float) -> bool:
    """Whether there is something to read, or the end, before the deadline."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
