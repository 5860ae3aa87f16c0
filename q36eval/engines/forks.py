"""Batches spread over forked processes of one thread each: how a small model uses the cores of a CPU.

A model of a few million parameters spends its time in many short operations, which two threads hardly share. One
process per core does; and since every batch is computed by one thread, its numbers do not depend on how many cores
there are.
"""

import gc
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class WorkerError(RuntimeError):
    """A batch that was not computed: its worker ended (killed for memory, most likely) or raised."""


def usable_workers() -> int:
    """How many one-thread processes are worth starting here: the cores we may use, as torch was told to use them."""
    return min(len(os.sched_getaffinity(0)), torch.get_num_threads()) if sys.platform == "linux" else 1


def in_forks(
    call: Callable[[T], list[R]], batches: Sequence[T], workers: int
) -> Iterator[tuple[T, list[R] | WorkerError]]:
    """`call` of every batch, in the order of `batches`; a worker takes the next batch as soon as it is free.

    Results travel pickled, tensors as copies. A batch whose worker fails comes back with the error.
    """
    context = multiprocessing.get_context("fork")
    taken = context.Value("q", 0)
    receivers: list[Connection] = []
    processes = []
    try:
        for _ in range(min(workers, len(batches))):
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            process = context.Process(target=_work, args=(call, batches, taken, sender, receivers), daemon=True)
            process.start()
            processes.append(process)
            sender.close()  # so that the pipe ends when its worker does
        yield from _in_order(batches, receivers)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _in_order(batches: Sequence[T], receivers: Sequence[Connection]) -> Iterator[tuple[T, list[Any] | WorkerError]]:
    found: dict[int, list[Any] | WorkerError] = {}
    announced: dict[Connection, int] = {}
    alive, given = list(receivers), 0
    while alive:
        for receiver in wait(alive):
            assert isinstance(receiver, Connection)
            try:
                index, answer = pickle.loads(receiver.recv_bytes())
            except EOFError:
                alive.remove(receiver)
                if receiver in announced:
                    found[announced.pop(receiver)] = WorkerError("its process died; is there memory enough?")
                continue
            if answer is None:
                announced[receiver] = index
            else:
                del announced[receiver]
                found[index] = answer
        while given in found:
            yield batches[given], found.pop(given)
            given += 1
    for index in range(given, len(batches)):
        yield batches[index], found.pop(index, WorkerError("every process died before its turn"))


def _work(
    call: Callable[[T], list[R]], batches: Sequence[T], taken: Any, sender: Connection, inherited: list[Connection]
) -> None:
    """A worker's life: announce a batch, compute it, send it; at the end leave without cleaning up the parent's things.

    Reading ends are closed first: when the parent dies, sending fails and the worker ends too.
    """
    for receiver in inherited:
        receiver.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    gc.disable()
    torch.set_num_threads(1)
    while True:
        with taken.get_lock():
            index, taken.value = taken.value, taken.value + 1
        if index >= len(batches):
            os._exit(0)
        try:
            sender.send_bytes(pickle.dumps((index, None)))
            try:
                answer: list[R] | WorkerError = call(batches[index])
            except Exception as error:  # whatever it was, the parent must hear of it
                answer = WorkerError(f"{type(error).__name__}: {error}")
            sender.send_bytes(pickle.dumps((index, answer)))
        except OSError:
            os._exit(1)
