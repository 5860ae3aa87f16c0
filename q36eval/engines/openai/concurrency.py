"""So many calls under way at once, results as they come, memory bounded however many there are."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

AHEAD = 2
"""Results per call under way that may wait to be taken; then no further request is begun."""


def in_flight(
    call: Callable[[RequestT], ResultT], requests: Iterable[RequestT], concurrency: int, *, ahead: int = AHEAD
) -> Iterator[ResultT]:
    """`call` of every request, `concurrency` at a time, in the order in which they end; exactly one result each.

    What `call` raises is raised here, and nothing further is begun. The threads are daemons: whoever leaves early waits
    for nobody.
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
