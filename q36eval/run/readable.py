"""That a checkpoint's files can be read at all: what a disk or its permissions refuse is no fault of the checkpoint."""

from pathlib import Path

from q36eval.errors import EngineError


def check_readable(folder: Path) -> None:
    """Read the first byte of every file in the folder.

    Raises:
        EngineError: one cannot be read; to judge its contents would blame the branch for the machine.
    """
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file():
                with file.open("rb") as stream:
                    stream.read(1)
    except OSError as error:
        where = error.filename or folder
        raise EngineError(
            f"{where} cannot be read: {error.strerror}. That says nothing of the branch: make it readable, gate again."
        ) from error
