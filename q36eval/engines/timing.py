"""How long a batch took, and how that is shared out among its requests."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from q36eval.engines.base import Generated, Scored
from q36eval.engines.batches import RequestT

ResultT = TypeVar("ResultT", Scored, Generated)


class Stopwatch:
    """Runs from its making to `stop`; on a GPU it measures the device's own time, which is known only later."""

    def __init__(self, device: torch.device) -> None:
        self._events = [_event(), _event()] if device.type == "cuda" else []
        self._started = time.perf_counter()
        self._seconds = 0.0
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        """What was handed to the device so far is what is timed."""
        self._seconds = time.perf_counter() - self._started
        if self._events:
            self._events[1].record()

    def seconds(self) -> float:
        """Waits for the device where it is not there yet."""
        if not self._events:
            return self._seconds
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def timed(call: Callable[[list[RequestT]], list[ResultT]], batch: list[RequestT]) -> list[ResultT]:
    """`call` of a batch on the CPU, its results with their part of the time."""
    watch = Stopwatch(torch.device("cpu"))
    results = call(batch)
    watch.stop()
    return shared_out(results, watch.seconds())


def shared_out(results: list[ResultT], seconds: float) -> list[ResultT]:
    """The results with their part of a batch's `seconds`, by the tokens each asked for and answered."""
    tokens = [_tokens(result) for result in results]
    return [replace(result, seconds=seconds * n / sum(tokens)) for result, n in zip(results, tokens, strict=True)]


def _tokens(result: Scored | Generated) -> int:
    asked = len(result.request.token_ids)
    return asked + len(result.token_ids) if isinstance(result, Generated) else asked
