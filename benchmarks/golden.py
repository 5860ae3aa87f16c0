"""What a gate of every sandbox branch measures and decides, recorded once and compared after each change of the code.

    python -m benchmarks.golden record FILE STATE [BRANCH …]     gate the branches and write the record
    python -m benchmarks.golden compare FILE STATE [BRANCH …]    gate them and compare; exit 1 where anything differs

Compared are every measurement to its last digit, the verdict and the code of each criterion, lane and stage, and the
exit code. STATE is a working folder: a branch that has a finished gate there is not gated again. Another kind of CPU
may give other digits, so a record is compared with gates of the machine that wrote it. Half an hour on two idle cores.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

BRANCHES = (
    *("bf16", "main", "fp8-head", "fp8-head-embed", "w4a16", "gptq-int4", "nvfp4-modelopt", "nvfp4-mixed"),
    "int2-experts",
)
COLUMNS = (
    *("probe", "metric", "slice", "unit", "direction", "estimator", "value", "reference_value", "effect"),
    *("lower", "upper", "level", "method", "total", "scored", "errored", "note"),
)
"""What a record holds of each measurement."""


def command(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The finished process of a q36eval command on that state."""
    environment = os.environ | {"Q36EVAL_STATE": str(state), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "q36eval", *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if not done.stdout:
        raise SystemExit(f"q36eval {' '.join(arguments)} printed nothing and exited with {done.returncode}.")
    return done


def finished(state: Path) -> dict[str, str]:
    """The newest finished gate of each branch: its run's id."""
    if not (state / "history.sqlite").is_file():
        return {}
    runs = json.loads(command(state, "history", "list", "--json").stdout)["runs"]
    ended = [run for run in runs if run["state"] == "finished" and run["verdict"] is not None]
    return {run["branch"]: run["id"] for run in sorted(ended, key=lambda run: run["started"])}


def gated(state: Path, branches: Sequence[str]) -> dict[str, Any]:
    """The record of each branch, gated now unless the state has a finished gate of it."""
    state.mkdir(parents=True, exist_ok=True)
    codes_file = state / "exit-codes.json"
    codes = json.loads(codes_file.read_text()) if codes_file.is_file() else {}
    for branch in branches:
        if branch not in finished(state) or branch not in codes:
            codes[branch] = command(state, "gate", "--branch", branch).returncode
            codes_file.write_text(json.dumps(codes))
    runs = finished(state)
    return {branch: {"exit_code": codes[branch], **record_of(state, runs[branch])} for branch in branches}


def record_of(state: Path, run: str) -> dict[str, Any]:
    """What one run measured and decided, without its sentences."""
    report = json.loads(command(state, "report", run, "--format", "json").stdout)["report"]
    measurements = json.loads(command(state, "history", "show", run, "--json").stdout)["measurements"]
    flat = [each | each["effect_interval"] | each["counts"] for each in measurements]
    rows = [{name: cell(each.get(name)) for name in COLUMNS} for each in flat]
    return {
        "headline": report["headline"],
        "lanes": {lane["lane"]: decided(lane) for lane in report["lanes"]},
        "criteria": {one["id"]: decided(one) for one in report["criteria"]},
        "measurements": {f"{row['probe']}.{row['metric']}[{row['slice']}]": row for row in rows},
    }


def cell(value: Any) -> str:
    """A value as text, as the first records were written: from a table for spreadsheets."""
    if value is None:
        return ""
    text = json.dumps(value) if isinstance(value, float) else str(value)
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@")) and value != "-Infinity"
    return f"'{text}" if formula else text


def decided(part: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a criterion or lane, and its code."""
    return {"verdict": part["verdict"], "code": part.get("code", "")}


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """A line for every place where the two differ. A record older than codes has none to compare."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if not (key == "code" and not before.get(key)):
                yield from differences(before.get(key), after.get(key), f"{place}/{key}")
    elif before != after:
        yield f"{place}: {before!r} -> {after!r}"


def main() -> None:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("state", type=Path)
    parser.add_argument("branches", nargs="*", help="these alone; all of the sandbox by default")
    arguments = parser.parse_args()
    branches = arguments.branches or list(BRANCHES)
    records = gated(arguments.state, branches)
    if arguments.action == "record":
        text = json.dumps(records, sort_keys=True, ensure_ascii=False)
        arguments.file.write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    before = json.loads(gzip.decompress(arguments.file.read_bytes()))
    lines = [line for branch in branches for line in differences(before[branch], records[branch], branch)]
    print("\n".join([*lines, f"{len(lines)} differences in {len(branches)} branches"]))
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
