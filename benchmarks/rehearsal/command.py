"""q36eval's own command line with the rehearsal's engine in the place of the one in process.

    python -m benchmarks.rehearsal.command RECORDS gate --branch …

Nothing that is installed reaches this: the engine that forces lengths is registered here alone.
"""

import sys
from pathlib import Path

from benchmarks.rehearsal.records import RECORDS
from q36eval.engines import opening
from q36eval.engines.base import IN_PROCESS


def main() -> None:
    """Runs the command, which exits with its own code."""
    folder, *command = sys.argv[1:]
    RECORDS.keep_in(Path(folder))
    known = opening.KINDS[IN_PROCESS]
    engine = "benchmarks.rehearsal.engine:ForcedLengths"
    opening.KINDS[IN_PROCESS] = opening.Kind(engine, known.repeats_itself_on)
    from q36eval.app.cli import main as command_line

    sys.argv = ["q36eval", *command]
    try:
        command_line()
    finally:
        RECORDS.write()


if __name__ == "__main__":
    main()
