"""Statistics and judgements are pure functions: of what they were asked before they give what they gave before.

A fault concerns few of the figures. The others are made of the same clusters as without it, by the same code.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import BaseModel

from q36eval.records import Measurement

PURE = (
    "q36eval.stats.summarize",
    "q36eval.evals.figures.recovery",
    "q36eval.gate.evidence.judge",
)


@contextmanager
def remembered() -> Iterator[None]:
    """Within, each distinct question to one of these functions is computed once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in PURE:
            module, _, function = name.rpartition(".")
            imported = __import__(module, fromlist=[function])
            patch.setattr(imported, function, _once(getattr(imported, function)))
        yield


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[str, ...], Any] = {}
    written: dict[int, tuple[Measurement, str]] = {}
    """By id, what a measurement says, and the measurement, so that no other takes its id."""

    def said(argument: Any) -> str:
        if isinstance(argument, Measurement):
            if id(argument) not in written:
                written[id(argument)] = argument, _hash_of(argument)
            return written[id(argument)][1]
        if isinstance(argument, BaseModel):
            return _hash_of(argument)
        return repr([said(each) for each in argument] if isinstance(argument, list | tuple) else argument)

    def found(*arguments: Any) -> Any:
        key = tuple(map(said, arguments))
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return found


def _hash_of(record: BaseModel) -> str:
    """Of every figure in it: the numbers are written such that no two are alike."""
    return hashlib.sha256(repr(record.model_dump()).encode()).hexdigest()
