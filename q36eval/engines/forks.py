"""Batches spread over forked processes of one thread each, for a small model on the cores of a CPU; and their times.

A model of a few million parameters spends its time in many short operations, which two threads hardly speed up. One
process per core does; and since one thread computes each batch, its numbers do not depend on the number of cores.
"""

import atexit
import gc
import multiprocessing
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

import torch

from q36eval.engines.batches import RequestT, ResultT, shared_out
from q36eval.interrupts import held_back, left_to_the_parent
from q36eval.memory import available_bytes

T = TypeVar("T")
R = TypeVar("R")

MAX_WORKERS = 8
BYTES_PER_WORKER = 3 * 2**29
"""1.5 GiB: the largest observed use of a worker on batches of this engine's size (1.35 GB), and some reserve."""

AHEAD = 2
"""Batches in a worker at a time, so that it computes one while the parent handles another."""


SIGNALS_EVERY_S = 1.0
"""A signal between Python's check and the system's wait would otherwise be seen only after that wait."""


class WorkerError(RuntimeError):
    """A batch that was not computed: its worker ended (most likely killed for lack of memory) or raised."""


def usable_workers() -> int:
    """The useful number of one-thread processes; 1 means none.

    The usable cores (affinity, cgroup quota, torch's own limit), as far as memory allows. None once this process has
    used a GPU: CUDA does not survive a fork, and libraries query the current device for CPU tensors, too.
    """
    if sys.platform != "linux" or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 1
    cores = min(len(os.sched_getaffinity(0)), torch.get_num_threads(), _cgroup_cores(), MAX_WORKERS)
    return max(1, min(cores, available_bytes() // BYTES_PER_WORKER))


def _cgroup_cores(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The CPU quota of this container in whole cores (cgroup v2), or no limit."""
    try:
        quota, period = file.read_text().split()
        return MAX_WORKERS if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return MAX_WORKERS


def in_forks(
    call: Callable[[T], list[R]], batches: Sequence[T], workers: int, waited: Callable[[], None] = lambda: None
) -> Iterator[tuple[T, list[R] | WorkerError]]:
    """`call` of every batch, in the order of `batches`; a worker gets the next batch as soon as it is free.

    Results travel pickled, tensors as copies. A batch whose worker fails comes back with the error. `waited` is called
    every second. Until the last result is taken, torch has one thread in this process, because all cores are busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    links: list[Connection] = []
    processes = []
    try:
        for _ in range(min(workers, len(batches))):
            ours, theirs = context.Pipe()
            links.append(ours)
            process = context.Process(target=_work, args=(call, batches, theirs, links), daemon=True)
            with held_back():  # a signal here would leave a worker that nothing kills
                process.start()
                processes.append(process)
                atexit.register(process.kill)  # registered before multiprocessing, which would send SIGTERM and wait
            theirs.close()  # so that the link closes when its worker ends
        yield from _in_order(batches, links, waited)
    finally:
        for process in processes:
            atexit.unregister(process.kill)
            process.kill()
            process.join()
        torch.set_num_threads(threads)


def _in_order(
    batches: Sequence[T], links: Sequence[Connection], waited: Callable[[], None]
) -> Iterator[tuple[T, list[Any] | WorkerError]]:
    done: dict[int, list[Any] | WorkerError] = {}
    waiting, given = deque(range(len(batches))), 0
    held: dict[Connection, deque[int]] = {link: deque() for link in links}
    while held and given < len(batches):
        for most in range(1, AHEAD + 1):  # one each first, or the first worker would take two of two
            for link in list(held):
                _hand_out(link, most, waiting, held, done)
        waited()
        for ready in wait(list(held), SIGNALS_EVERY_S) if held else []:
            assert isinstance(ready, Connection)
            try:
                done[held[ready][0]] = pickle.loads(ready.recv_bytes())
                held[ready].popleft()
            except (EOFError, OSError):
                _bury(ready, waiting, held, done)
        while given in done:
            yield batches[given], done.pop(given)
            given += 1
    for index in range(given, len(batches)):
        yield batches[index], done.pop(index, WorkerError("every process died before its turn"))


def _hand_out(
    link: Connection, most: int, waiting: deque[int], held: dict[Connection, deque[int]], done: dict[int, Any]
) -> None:
    """Send a worker batches until it holds `most`."""
    while waiting and len(held[link]) < most:
        try:
            link.send_bytes(str(waiting[0]).encode())
        except OSError:
            _bury(link, waiting, held, done)
            return
        held[link].append(waiting.popleft())


def _bury(link: Connection, waiting: deque[int], held: dict[Connection, deque[int]], done: dict[int, Any]) -> None:
    """Handle a dead worker: its current batch is lost, its other batches go to the remaining workers."""
    mine = held.pop(link)
    if mine:
        done[mine.popleft()] = WorkerError("its process died; is there memory enough?")
    waiting.extendleft(reversed(mine))


def _work(call: Callable[[T], list[R]], batches: Sequence[T], link: Connection, inherited: list[Connection]) -> None:
    """A worker's loop: take an index, compute that batch, send it; exit without cleaning up the parent's objects.

    The parent's ends are closed first: if the parent dies, the link breaks and the worker ends, too.
    """
    for other in inherited:
        other.close()
    left_to_the_parent()
    gc.disable()
    torch.set_num_threads(1)
    try:
        while True:
            link.send_bytes(_answer(call, batches[int(link.recv_bytes())]))
    except (EOFError, OSError):
        os._exit(0)


def _answer(call: Callable[[T], list[R]], batch: T) -> bytes:
    try:
        return pickle.dumps(call(batch))
    except BaseException as error:  # the parent must receive any error
        return pickle.dumps(WorkerError(f"{type(error).__name__}: {error}"))


class Stopwatch:
    """Runs from its creation to `stop`; on a GPU it measures the device's time, which is known only later."""

    def __init__(self, device: torch.device) -> None:
        self._events = [_event(), _event()] if device.type == "cuda" else []
        self._started = time.perf_counter()
        self._seconds = 0.0
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        """Times all work submitted to the device so far."""
        self._seconds = time.perf_counter() - self._started
        if self._events:
            self._events[1].record()

    def seconds(self) -> float:
        """Waits for the device if necessary."""
        if not self._events:
            return self._seconds
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def timed(call: Callable[[list[RequestT]], list[ResultT]], batch: list[RequestT]) -> list[ResultT]:
    """`call` of a batch on the CPU, its results with their shares of the time."""
    watch = Stopwatch(torch.device("cpu"))
    results = call(batch)
    watch.stop()
    return shared_out(results, watch.seconds())
