"""Whether two addresses lead to one server: compared with itself, any faulty server would pass."""

import time

from q36eval.engines.openai.client import NoAnswerError, RefusedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError

ATTEMPTS = 3
"""Other clients of the watched server raise its count, too, but hardly each time."""
COUNTED_SECONDS = 5.0
"""Requests are counted within this time."""


def are_one(first: Endpoint, second: Endpoint) -> bool | None:
    """Whether one process answers at both; None if unknown.

    If both report a start time, two start times are two servers. Equal start times may be two servers: the time is in
    hundredths of a second, and a script starts servers together. Otherwise one is queried, and the other's count of
    prompt tokens is watched: it stays the same for two servers, and rises each time for one. A gateway may hide either
    page.

    Raises:
        EngineError: the queried one does not answer.
    """
    starts = first.server.started, second.server.started
    if None not in starts and starts[0] != starts[1]:
        return False
    if second.prompt_tokens() is not None:
        asked, watched = first, second
    elif first.prompt_tokens() is not None:
        asked, watched = second, first
    else:
        return None
    found = [_rises(asked, watched)]
    while found[-1] and len(found) < ATTEMPTS:
        found.append(_rises(asked, watched))
    return found[-1]


def _rises(asked: Endpoint, watched: Endpoint) -> bool | None:
    """Whether the watched count rises when the other server is queried and has counted it; None if not reported.

    The watched one is read first: for one server, its count is then at most the other's later count, so a delayed count
    is never mistaken for an unchanged one.
    """
    before, own = watched.prompt_tokens(), asked.prompt_tokens()
    if before is None:
        return None
    try:
        asked.complete(asked.tokenizer.encode("a", add_special_tokens=False), 2)
    except RefusedError:
        return None
    except NoAnswerError as error:
        raise EngineError("server-silent", f"{asked.name} does not answer: {error}.") from error
    counted_by = time.monotonic() + COUNTED_SECONDS
    while True:
        now = asked.prompt_tokens()
        after = watched.prompt_tokens()
        if after is None:
            return None
        if after > before:
            return True
        if own is not None and now is not None and now > own:
            return False
        if time.monotonic() > counted_by:
            return None if own is not None else False
        time.sleep(0.05)
