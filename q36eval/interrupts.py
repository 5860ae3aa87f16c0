"""Ctrl-C and SIGTERM: both end a command in the same way, and neither twice.

A command that measures for hours is stopped by a person, a job's time limit or a machine that shuts down. All mean the
same: stop here, keep what was measured, say how to go on. A terminal that is gone (SIGHUP) means something else: nobody
reads any more, but what was begun is still wanted.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SECONDS_TO_CLOSE = 3.0
"""A signal that follows the first so soon means the same one: whoever sends two is impatient, or sends to a process
and its group. A later one interrupts again, so that a first which a library swallowed is not the last."""

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM: what a Ctrl-C is, sent by a program."""


_ended = float("-inf")
_closing = 0
_whole = 0
_waiting: int | None = None
"""The signal that came within `uninterrupted`."""


def _stop(number: int, _frame: FrameType | None) -> None:
    global _ended, _waiting
    if _closing or time.monotonic() - _ended < SECONDS_TO_CLOSE:
        return
    _ended = time.monotonic()
    _waiting = number
    if not _whole:
        stop_if_told()


def stop_if_told() -> None:
    """Raise what a signal that came within `uninterrupted` means, in the thread that it interrupts; else nothing.

    Raises:
        KeyboardInterrupt: it came.
    """
    global _waiting
    if threading.current_thread() is not threading.main_thread():
        return
    number, _waiting = _waiting, None
    if number is not None:
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _stay(_number: int, _frame: FrameType | None) -> None:
    """What a terminal that hangs up means to a command that measures; a program it starts does not inherit that."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Within, SIGINT raises KeyboardInterrupt and SIGTERM its `Terminated`; a second one soon after raises nothing.

    What whoever started this process told it to ignore stays ignored, as a shell does for what runs in its background.
    """
    global _ended, _waiting
    _ended, _waiting = float("-inf"), None
    with _handling(dict.fromkeys(STOPPING, _stop)):
        yield


@contextmanager
def surviving_hangup() -> Iterator[None]:
    """Within, the terminal may go away: what is measured is measured to its end."""
    with _handling({signal.SIGHUP: _stay}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, a signal waits for the end: a library that is interrupted in the middle of a write may keep its lock."""
    global _whole
    if threading.current_thread() is not threading.main_thread():  # only there a signal interrupts
        yield
        return
    _whole += 1
    try:
        yield
    finally:
        _whole -= 1
        if not _whole:
            stop_if_told()


@contextmanager
def closing() -> Iterator[None]:
    """Within, what was interrupted is put away: no signal interrupts that."""
    global _closing
    _closing += 1
    try:
        yield
    finally:
        _closing -= 1


@contextmanager
def _handling(handlers: dict[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there may a handler be set
        yield
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def left_to_the_parent() -> None:
    """In a forked worker: its parent decides what a signal means, and ends it."""
    for number in (*STOPPING, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


@contextmanager
def held_back() -> Iterator[None]:
    """Within, signals wait: between a fork and its child's first word, both would act on one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
