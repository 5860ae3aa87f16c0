"""Whether two addresses lead to one server: held to itself it would pass whatever is wrong with it."""

import time

from q36eval.engines.openai.client import NoAnswerError, RefusedError
from q36eval.engines.openai.endpoint import Endpoint
from q36eval.errors import EngineError

ATTEMPTS = 3
"""Whoever else asks the server that is watched raises its count too, but hardly each time."""
COUNTED_SECONDS = 5.0
"""What was asked is counted by then."""


def are_one(first: Endpoint, second: Endpoint) -> bool | None:
    """Whether one process answers at both; None where they do not tell.

    Where both tell a start, two starts are two servers. One start may be of two: it is told in hundredths of a second,
    and a script starts servers at once. Else one is asked, and the other's count of prompt tokens is watched: of two
    servers it stays as it was, of one it rises each time. A gateway may hide either page.

    Raises:
        EngineError: the one that is asked does not answer.
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
    """Whether the one's count rises when the other is asked, and has counted that itself; None where that is not told.

    The one watched is read first: of one server, what it had counted by then is no more than what the other read finds,
    so that a count that is told late is never taken for one that stays.
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
