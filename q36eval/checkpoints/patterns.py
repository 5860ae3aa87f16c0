"""Regular expressions that a checkpoint's configuration holds, matched for a limited time.

Somebody else wrote them: `(a+)+$` takes longer than the universe's age over a name of forty characters.
"""

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import regex

from q36eval.errors import CorruptCheckpointError

SECONDS = 0.5
"""For one name; a pattern as producers write it takes microseconds. All seconds here are those of the processor: how
long a busy machine makes a thread wait says nothing of the pattern."""
ATTEMPTS = 10
"""For one name whose time ran out while others had the processor."""
SLOW_SECONDS = 0.001
SECONDS_IN_ALL = 5.0
"""For all names on which it takes longer than `SLOW_SECONDS`: a checkpoint has 120,000."""
SECONDS_OF_ALL_PATTERNS = 30.0
"""The same of all patterns together, of which a configuration may hold many: beyond it each has `SECONDS_ALONE`."""
SECONDS_ALONE = 0.5
MOST_PATTERNS = 1024
"""Of one configuration, names without a wildcard apart. Producers write some hundreds, and every name of a tensor is
compared with each of them."""
_slow: dict[str, float] = defaultdict(float)


def check_pattern(pattern: str) -> None:
    """Refuse what compressed-tensors and GPTQModel, who compile it by `re`, would fail at.

    Raises:
        CorruptCheckpointError: it is malformed.
    """
    try:
        re.compile(pattern)
        _compiled(pattern)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise CorruptCheckpointError("pattern-malformed", f"the pattern {pattern!r} is malformed ({error})") from error


def matches_pattern(pattern: str, name: str, anywhere: bool = False) -> bool:
    """Whether the name begins with what the pattern means, as `re.match` has it, or holds it `anywhere` (`re.search`).

    Raises:
        CorruptCheckpointError: it is malformed, or does not come to an end.
    """
    for _ in range(ATTEMPTS):
        if _is_too_slow(pattern):
            break
        begun = time.thread_time()
        try:
            compiled = _compiled(pattern)
            return (compiled.search if anywhere else compiled.match)(name, timeout=SECONDS) is not None
        except TimeoutError:
            if time.thread_time() - begun > SECONDS / 2:
                _slow[pattern] = SECONDS_IN_ALL + 1
        except regex.error as error:
            raise CorruptCheckpointError(
                "pattern-malformed", f"the pattern {pattern!r} is malformed ({error})"
            ) from error
        finally:
            seconds = time.thread_time() - begun
            _slow[pattern] += seconds if seconds > SLOW_SECONDS else 0.0
    raise CorruptCheckpointError(
        "pattern-too-slow",
        f"the pattern {pattern!r} takes too long to be matched with the names of tensors; write it without nested "
        f"repetitions",
    )


def check_count(patterns: Sequence[str]) -> None:
    """Refuse more patterns than any producer writes.

    Raises:
        CorruptCheckpointError: there are more than `MOST_PATTERNS`.
    """
    if len(patterns) > MOST_PATTERNS:
        raise CorruptCheckpointError(
            "patterns-too-many",
            f"{len(patterns):,} patterns are given ({patterns[0]!r} among them), and {MOST_PATTERNS:,} are read at "
            f"most; name modules in full instead",
        )


def _is_too_slow(pattern: str) -> bool:
    own = _slow[pattern]
    return own > SECONDS_IN_ALL or (own > SECONDS_ALONE and sum(_slow.values()) > SECONDS_OF_ALL_PATTERNS)


@lru_cache(maxsize=2 * MOST_PATTERNS)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern, regex.VERSION0)
