"""The folder that frozen data is written into: it takes its place whole or not at all, and takes nothing else's."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from q36eval.errors import UsageError
from q36eval.evals.frozen import MANIFEST, read_manifest
from q36eval.locks import exclusive


def check_replaceable(target: Path, name: str) -> None:
    """Refuse a place that holds anything but an older freezing of the data called `name`.

    Raises:
        UsageError: says what is there.
    """
    other = "name another folder with --out"
    try:
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            return
        if not target.is_dir() or not (target / MANIFEST).is_file():
            raise UsageError(f"{target} holds something that is not frozen data; {other}.")
        manifest = read_manifest(target)
        found = [path for path in target.rglob("*") if path.is_file() and not path.name.startswith(".")]
    except OSError as error:
        raise _unusable(target, error) from error
    if manifest.name != name:
        raise UsageError(f"{target} holds {manifest.name}, not {name}; {other}.")
    listed = {MANIFEST, *manifest.files}
    if extra := sorted(path for path in found if path.relative_to(target).as_posix() not in listed):
        raise UsageError(f"{target} holds {extra[0].relative_to(target)}, which is not frozen data; {other}.")


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its place when all went well, and goes when not.

    What a killed freezing left there goes first.

    Raises:
        UsageError: nothing can be written there, or another process is freezing into it.
    """
    beside = target.parent / f".{target.name}-freezing"
    new, old = beside / "new", beside / "old"
    try:
        with exclusive(beside / "lock"):
            try:
                if old.exists() and not target.exists():  # killed between the two renames below
                    old.rename(target)
                for left in (new, old):
                    shutil.rmtree(left, ignore_errors=True)
                new.mkdir()
                yield new
                if target.exists():
                    target.rename(old)
                new.rename(target)
            finally:
                if target.exists() or not old.exists():
                    shutil.rmtree(beside, ignore_errors=True)
    except BlockingIOError as error:
        raise UsageError(f"Another process is freezing into {target}; wait for it.") from error
    except OSError as error:
        raise _unusable(target, error) from error


def _unusable(target: Path, error: OSError) -> UsageError:
    return UsageError(f"{target} cannot be written ({error.strerror or error}); name another folder with --out.")
