"""Exclusive locks between processes, on files: the system frees one when its holder dies, however it dies."""

import errno
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP}
"""What a file system answers that knows no locks."""

LOOKING_S = 0.1


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock file `path`, made if need be; on a file system without locks it excludes nobody.

    When another holds it, `waiting` is called once and its turn awaited; without `waiting` that is an error, after a
    tenth of a second in which a process that only looks (`is_held`) lets go. The file stays. A forked child does not
    hold it.

    Raises:
        BlockingIOError: it is held, and there is no `waiting`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=LOOKING_S)
    except Timeout as error:
        if waiting is None:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock", str(path)) from error
        waiting()
        lock.acquire()
    except OSError as error:
        if error.errno not in _CANNOT_LOCK:
            raise
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether another process, or another part of this one, holds the lock file; it is not made.

    A shared lock looks, which filelock does not have for a file: two that look do not take each other for the holder.
    """
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
