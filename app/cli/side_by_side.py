"""Several branches of one gate measured at the same time, each in a process of its own on GPUs of its own.

They share the reference's capture: the first one that needs it makes it, and the others wait for it.
"""

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import IO

from q36eval import starting
from q36eval.app.cli.branch_process import Outcome, Task
from q36eval.app.cli.options import Quiet
from q36eval.config import Paths
from q36eval.engines import EngineOptions
from q36eval.engines.worker_places import gpus_of
from q36eval.errors import EngineError, UsageError
from q36eval.reports.text import SENTENCE, plain
from q36eval.run.request import Request

VISIBLE = "CUDA_VISIBLE_DEVICES"
SECONDS_TO_END = 60.0
"""What a process that is stopped may take: a batch under way is computed to its end."""


def devices_of(options: EngineOptions, at_once: int) -> list[str | None]:
    """The GPUs of this machine that each of so many branches has for itself; None where it needs none of them.

    Raises:
        UsageError: there are too few, or one is named.
    """
    if options.ray is not None or _needs_none(options):
        return [None] * at_once
    if options.device not in ("cpu", "cuda", "cuda:0"):
        raise UsageError(
            "device-conflict",
            f"--device {options.device} names one GPU, and --at-once gives every branch others; write --device cuda, "
            f"and choose among the GPUs of this machine with {VISIBLE}.",
        )
    each = (options.workers or 1) * gpus_of(options)
    visible = _visible()
    if len(visible) < each * at_once:
        raise UsageError(
            "gpus-insufficient",
            f"{at_once} branches at once, each on {each} GPU{'s' * (each > 1)}, need {each * at_once} GPUs, and "
            f"{len(visible)} can be seen here; take fewer at once.",
        )
    return [",".join(visible[begin : begin + each]) for begin in range(0, each * at_once, each)]


def _needs_none(options: EngineOptions) -> bool:
    """Whether nothing of a branch is computed on a GPU of this machine; vLLM takes one whatever the device's name is,
    but for its build for CPUs."""
    if options.kind == "vllm" and options.device == "cpu":
        from q36eval.engines.vllm.environment import environment  # it is asked which build that is

        return environment(options.engine_python).on_cpu
    return options.device == "cpu"


def _visible() -> list[str]:
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    import torch  # seconds, and only where there are GPUs

    return [str(index) for index in range(torch.cuda.device_count())]


class SideBySide:
    """Measures branches, as many at a time as there are `devices`: of each, its GPUs, or None."""

    def __init__(self, devices: Sequence[str | None], paths: Paths) -> None:
        self._paths = paths
        self._free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for each in devices:
            self._free.put(each)
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="branch")
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def outcomes(self, asked: Sequence[tuple[str, Request]]) -> Generator[Outcome, None, None]:
        """What became of each branch, by name, in order; those under way are stopped where nobody wants the rest."""
        under_way: list[Future[Outcome]] = []
        starting.over()  # each process tells of its own
        try:
            under_way += [self._pool.submit(self._measured, name, request) for name, request in asked]
            for each in under_way:
                yield each.result()
        except BaseException as error:
            self._stop()
            self._pool.shutdown(cancel_futures=True)
            for each in under_way:  # how to go on with what was begun
                if each.done() and not each.cancelled() and each.exception() is None:
                    for note in getattr(each.result().error, "__notes__", ()):
                        error.add_note(note)
            raise
        self._pool.shutdown()

    def _measured(self, name: str, request: Request) -> Outcome:
        devices = self._free.get()
        try:
            return self._in_a_process(name, request, devices)
        finally:
            self._free.put(devices)

    def _in_a_process(self, name: str, request: Request, devices: str | None) -> Outcome:
        # not by -m, with which what it answers would be of another module than this one reads; and by this process's
        # own path, so that no file of the current folder stands in for a module
        program = f"import sys; sys.path[:] = {sys.path!r}; from q36eval.app.cli.branch_process import main; main()"
        command = [sys.executable, "-P", "-c", program]
        environment = os.environ | ({} if devices is None else {VISIBLE: devices})
        with self._lock:
            if self._stopped:
                return Outcome(None, EngineError("process-not-started", "It was not begun."))
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
                )
            except OSError as error:
                return Outcome(
                    None, EngineError("process-not-started", f"No process could be started to measure {name}: {error}.")
                )
            self._running.add(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        lines = threading.Thread(target=_relay, args=(name, process.stderr), daemon=True)
        lines.start()
        with suppress(OSError), process.stdin as asking:  # one that ended at once says so by its exit code
            asking.write(pickle.dumps(Task(request, self._paths, Quiet.wanted)))
        data = process.stdout.read()
        code = process.wait()
        lines.join(timeout=SECONDS_TO_END)
        with self._lock:
            self._running.discard(process)
        try:
            outcome: Outcome = pickle.loads(data)
        except (EOFError, pickle.UnpicklingError):
            reason = f"The process that measured {name} ended with exit code {code} and without an answer."
            again = "q36eval history list names its run, which --resume goes on with."
            return Outcome(None, EngineError("process-died", f"{reason} {again}"))
        return outcome

    def _stop(self) -> None:
        """End what is under way, as a person would: each says how to go on."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()


def _relay(name: str, stream: IO[bytes]) -> None:
    """A branch's lines, each behind its name."""
    for line in stream:
        text = line.decode(errors="replace").rstrip()
        if text:
            print(f"[{plain(name, SENTENCE)}] {text}", file=sys.stderr, flush=True)
