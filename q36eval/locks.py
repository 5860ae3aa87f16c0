"""Exclusive locks between processes, on files: the system frees one when its holder dies, however it dies."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
"""What a file system answers that knows no locks."""

LOOKING_S = 0.1
_held: set[int] = set()


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, made if need be; on a file system without locks it excludes nobody.

    When another holds it, `waiting` is called once and its turn awaited; without `waiting` that is an error, after a
    tenth of a second in which whoever only looks (`is_held`) lets go. The file stays: were it removed, two could hold
    "the" lock on two files of one name.

    Raises:
        BlockingIOError: it is held, and there is no `waiting`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    _held.add(descriptor)
    try:
        _lock(descriptor, waiting)
        yield
    finally:
        if descriptor in _held:  # not so in a forked child: the lock is not the child's to free
            _held.remove(descriptor)
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether another process, or another part of this one, holds the lock file; it is not made."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
    return False


def _lock(descriptor: int, waiting: Callable[[], None] | None) -> None:
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                time.sleep(LOOKING_S)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise


def _leave_to_the_parent() -> None:
    """In a forked child: a worker that outlives its parent must not keep the parent's locks."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
