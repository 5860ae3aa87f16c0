"""What gates said, recorded before the house is rebuilt and compared after: nothing that is judged may change.

    python -m benchmarks.golden record STATE FILE     from the last finished run of every branch of a state folder
    python -m benchmarks.golden compare FILE STATE [BRANCH …]    exit 1 where anything differs that no line of the map
                                                                allows

Everything is read through the commands, as a user would: the JSON report, the model card's section and every
measurement to the last digit. `golden_map.yaml` beside this file lists what may differ, with the reason: renamed keys,
sentences, identities, versions, times. One kind of CPU makes the same numbers; another may not.

The state is that of `python -m benchmarks.sandbox.measured`, which gates every branch and rung of the sandbox.
"""

import argparse
import csv
import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from q36eval.files import read_our_yaml

MAP = Path(__file__).with_name("golden_map.yaml")


def command(state: Path, *arguments: str) -> str:
    """What the command prints about that state."""
    program = Path(sys.executable).with_name("q36eval")
    done = subprocess.run(
        [program, *arguments],
        env=os.environ | {"Q36EVAL_STATE": str(state), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    if not done.stdout:
        raise SystemExit(f"q36eval {' '.join(arguments)} printed nothing: {done.stderr.strip()}")
    return done.stdout


def recorded(state: Path) -> dict[str, Any]:
    """Everything that is compared, by branch: of the last run of each that has a verdict."""
    runs = json.loads(command(state, "history", "list", "--json"))["runs"]
    last: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run["started"]):
        if run["state"] == "finished" and run["verdict"] is not None:
            last[run["branch"]] = run["id"]
    return {branch: said_of(state, run) for branch, run in sorted(last.items())}


def said_of(state: Path, run: str) -> dict[str, Any]:
    """One run's report, card and measurements."""
    table = command(state, "history", "export", run, "--table", "measurements", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(table)))
    return {
        "report": json.loads(command(state, "report", run, "--format", "json")),
        "card": command(state, "report", run, "--format", "card").splitlines(),
        "measurements": {f"{row['probe']}.{row['metric']}[{row['slice']}]": row for row in rows},
    }


def differences(before: Any, after: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place where the two differ, with what stands there."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            yield from differences(before.get(key), after.get(key), f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif before != after:
        yield place, before, after


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("branches", nargs="*", help="compare these alone")
    arguments = parser.parse_args()
    if arguments.what == "record":
        text = json.dumps(recorded(arguments.first), sort_keys=True, ensure_ascii=False)
        arguments.second.write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    before, after = json.loads(gzip.decompress(arguments.first.read_bytes())), recorded(arguments.second)
    if arguments.branches:
        before, after = ({name: of[name] for name in arguments.branches} for of in (before, after))
    entries = read_our_yaml(MAP)
    allowed = [(re.compile(entry["place"]), re.compile(entry.get("before", ".*"), re.DOTALL)) for entry in entries]
    left = 0
    for place, one, other in differences(before, after):
        if not any(where.fullmatch(place) and what.fullmatch(str(one)) for where, what in allowed):
            left += 1
            print(f"{place}: {one!r} -> {other!r}")
    print(f"{left} differences that the map does not allow, of {len(before)} branches")
    sys.exit(1 if left else 0)


if __name__ == "__main__":
    main()
