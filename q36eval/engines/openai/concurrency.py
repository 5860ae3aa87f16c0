"""A limited number of concurrent calls, results as they arrive, and bounded memory."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

AHEAD = 2
"""Waiting results per concurrent call; at this limit no further request is started."""


def in_flight(
    call: Callable[[RequestT], ResultT], requests: Iterable[RequestT], concurrency: int, *, ahead: int = AHEAD
) -> Iterator[ResultT]:
    """`call` of every request, `concurrency` at a time, in the order in which they end; exactly one result each.

    Exceptions of `call` are raised here, and no further request is started. The threads are daemons: an early exit does
    not wait for them.
    """
    todo, lock, stopped = iter(requests), threading.Lock(), threading.Event()
    done: queue.SimpleQueue[tuple[bool, ResultT | BaseException]] = queue.SimpleQueue()
    room = threading.Semaphore(concurrency * (1 + ahead))
    end = object()

    def work() -> None:
        while True:
            room.acquire()
            with lock:
                request = end if stopped.is_set() else next(todo, end)
            if request is end:
                done.put((False, StopIteration()))
                return
            try:
                result: tuple[bool, ResultT | BaseException] = (True, call(request))  # type: ignore[arg-type]
            except BaseException as error:
                result = (False, error)
            done.put(result)

    workers = [threading.Thread(target=work, daemon=True, name=f"request-{n}") for n in range(concurrency)]
    for worker in workers:
        worker.start()
    working = len(workers)
    try:
        while working:
            came, result = done.get()
            room.release()
            if came:
                yield result  # type: ignore[misc]
            elif isinstance(result, StopIteration):
                working -= 1
                room.release()
            else:
                raise result  # type: ignore[misc]
    finally:
        stopped.set()
        for _ in workers:
            room.release()
