"""Regular expressions that a checkpoint's configuration holds, matched for a limited time.

Somebody else wrote them: `(a+)+$` takes longer than the universe's age over a name of forty characters.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import regex

from q36eval.errors import CorruptCheckpointError

SECONDS = 1.0
"""For one match. A pattern as producers write it takes microseconds."""
MOST_PATTERNS = 1024
"""Of one configuration, names without a wildcard apart. Producers write some hundreds, and every name of a tensor is
compared with each of them."""
_too_slow: set[str] = set()


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
    try:
        if pattern in _too_slow:
            raise TimeoutError
        compiled = _compiled(pattern)
        return (compiled.search if anywhere else compiled.match)(name, timeout=SECONDS) is not None
    except TimeoutError as error:
        _too_slow.add(pattern)
        raise CorruptCheckpointError(
            "pattern-too-slow",
            f"the pattern {pattern!r} takes too long to be matched with the names of tensors; write it without nested "
            f"repetitions",
        ) from error
    except regex.error as error:
        raise CorruptCheckpointError("pattern-malformed", f"the pattern {pattern!r} is malformed ({error})") from error


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


@lru_cache(maxsize=2 * MOST_PATTERNS)
def _compiled(pattern: str) -> Any:
    return regex.compile(pattern, regex.VERSION0)
