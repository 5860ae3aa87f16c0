"""Requests that errored are made again, twice, before their error stands."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

RETRY_DELAYS_SECONDS = (0.5, 2.0)
"""Seconds before errored requests are made again, the first and second time."""

Retried = Callable[[int, str], None]
"""Called with the number of repeated requests, and the error of one."""

pause = time.sleep


def with_retry(
    call: Callable[[Sequence[Any]], Iterator[Any]], requests: Sequence[Any], retried: Retried | None = None
) -> Iterator[Any]:
    """Results of `call`; errored ones are requested again after each of `RETRY_DELAYS_SECONDS`, then they are final.

    Permanent errors (a request that does not fit the context) are not repeated. `retried` is called before each retry.
    """
    for delay in (*RETRY_DELAYS_SECONDS, None):
        again, why = [], ""
        for result in call(requests):
            if result.error is None or result.permanent or delay is None:
                yield result
            else:
                again.append(result.request)
                why = why or result.error
        if not again or delay is None:
            return
        if retried is not None:
            retried(len(again), why)
        pause(delay)
        requests = again
