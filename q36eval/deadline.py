"""Work with a total deadline, whatever it waits for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

ValueT = TypeVar("ValueT")


def within(seconds: float, work: Callable[[], ValueT]) -> ValueT:
    """What `work` returns or raises. It runs in a thread of its own, which is left alone once the time is over.

    Raises:
        TimeoutError: it is not done after so many seconds.
    """
    outcome = Future[ValueT]()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # whoever waits has to know
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)
