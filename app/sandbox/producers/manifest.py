"""Hash the sandbox's files anew, after a deliberate change.

`python -m q36eval.app.sandbox.producers.manifest data/sandbox`."""

import sys
from pathlib import Path

from q36eval.app.sandbox.branches import write_manifest

if __name__ == "__main__":
    write_manifest(Path(sys.argv[1]))
