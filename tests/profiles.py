"""Two sizes of a test: quick for `make test`, long for `make test-long`.

A test whose size depends on the profile carries the marker `sized` (a Hypothesis test gets it automatically): those
run again in the long profile. The quick profile draws the same examples each time, so that what it says depends on the
code alone; the long one draws others every time.
"""

import os

LONG = os.environ.get("Q36EVAL_TEST_PROFILE", "quick") == "long"


def sized(quick: int, long: int) -> int:
    """How many examples, draws or kills this profile takes."""
    return long if LONG else quick


UNTIL = float(os.environ.get("Q36EVAL_TEST_UNTIL", "inf"))
"""Seconds since the epoch after which no test begins, the rest is skipped: what time CI has for the long profile."""
