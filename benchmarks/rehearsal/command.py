"""q36eval's own command line with the rehearsal's engines in the place of in-process and vllm.

    python -m benchmarks.rehearsal.command RECORDS gate --branch …

Nothing that is installed reaches this: the engines that force lengths are registered here alone.
"""

import sys
from dataclasses import replace
from pathlib import Path


def main() -> None:
    """Runs the command, which exits with its own code."""
    folder, *command = sys.argv[1:]
    from benchmarks.rehearsal.records import RECORDS
    from q36eval.engines import opening
    from q36eval.engines.base import IN_PROCESS

    RECORDS.keep_in(Path(folder))
    for kind, name in {IN_PROCESS: "ForcedLengths", "vllm": "ForcedVLLM"}.items():
        opening.KINDS[kind] = replace(opening.KINDS[kind], engine=f"benchmarks.rehearsal.engine:{name}")
    from q36eval.app.cli import main as command_line

    sys.argv = ["q36eval", *command]
    try:
        command_line()
    finally:
        RECORDS.write()


if __name__ == "__main__":
    main()
