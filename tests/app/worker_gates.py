"""One gate of `kill_gates` with its work spread over workers; run by a test, in a process of its own.

Usage: `worker_gates.py STATE FILES WORKERS [ADDRESS] [--kill PID_FILE]`. WORKERS 0 is the engine alone. With `--kill`
the process ids of the workers are written to that file once the branch is being measured, so that they can be killed,
and it waits at that point for the file `go` beside it.
"""

import sys
import time
from pathlib import Path

import q36eval.kl.floor
from q36eval.engines import EngineOptions
from tests.app.kill_gates import Killing, gate


class Pausing(Killing):
    """At the first item of the branch it says which processes the workers are, and goes on when it is told to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._paused = file, False

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        if self._now.startswith("measuring the branch") and count and not self._paused:
            self._paused = True
            from q36eval.engines.workers.pool import _pools

            members = [member for pool in _pools.values() for member in pool.members]
            pids = [str(member.facts.process) for member in members if member.facts is not None]
            self._file.with_suffix(".new").write_text("\n".join(pids))
            self._file.with_suffix(".new").rename(self._file)
            while not self._file.with_name("go").exists():
                time.sleep(0.05)


def main(arguments: list[str]) -> None:
    """As the module says."""
    file = None
    if "--kill" in arguments:
        place = arguments.index("--kill")
        file = Path(arguments[place + 1])
        arguments = arguments[:place]
    state, files, workers = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    address = arguments[3] if len(arguments) > 3 else None
    q36eval.kl.floor.TOKENS, q36eval.kl.floor.DOCUMENTS = 1000, 3  # a whole one takes ten seconds
    engine = EngineOptions(workers=workers or None, ray=address)
    gate(state, files, Killing() if file is None else Pausing(file), engine)


if __name__ == "__main__":
    main(sys.argv[1:])
