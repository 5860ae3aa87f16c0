"""Errors a person sees: one clear sentence each, the code of its kind, and the exit code it leads to."""

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command. Anything but `PASS` blocks a release."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NOT_MEASURED = 4
    INTERRUPTED = 130
    TERMINATED = 143


class Q36Error(Exception):
    """Base of every expected error: its text is one sentence that says what is wrong, where, and what to do.

    `code` names the kind of problem in kebab-case (`branch-unknown`). A sentence may be reworded; its code stays.
    """

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is pickled by `args`, which hold the message alone; notes are in `__dict__`
        return type(self), (self.code, *self.args), self.__dict__


class UsageError(Q36Error):
    """Wrong usage, configuration or a missing prerequisite (exit code 2)."""

    exit_code = ExitCode.USAGE


class CorruptCheckpointError(Q36Error):
    """A checkpoint that is not what it says it is: a proven FAIL (exit code 1)."""

    exit_code = ExitCode.FAIL


class EngineError(Q36Error):
    """The engine or the infrastructure could not measure (exit code 4). Never counted as a wrong answer."""

    exit_code = ExitCode.NOT_MEASURED


class ChangedError(EngineError):
    """What is judged is not what it was when it was opened (exit code 4): neither PASS nor FAIL would be of it."""


class StorageError(Q36Error):
    """What must be kept cannot be: a full disk, a read-only file (exit code 4). What was written before stays."""

    exit_code = ExitCode.NOT_MEASURED
