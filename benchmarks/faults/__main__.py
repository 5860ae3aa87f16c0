"""Runs the campaign; see the package."""

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.faults import AREAS, Bench, Fault, faults_of
from benchmarks.faults.bench import ROOT

PAGE = ROOT / "docs" / "reliability.md"

INTRODUCTION = """\
# What breaks, what is promised, what is seen

`make faults` does each of these to the real command on the sandbox and writes this page; nothing in the last column is
typed by hand. It takes longer than the tests and is run at night, and before a release.

A gate whose evidence broke must never PASS by it. Exit codes: 0 PASS, 1 FAIL, 2 a person can mend it before anything is
measured, 3 INCONCLUSIVE, 4 not measured, 130 and 143 interrupted and to be resumed.

"""


@dataclass(frozen=True)
class Outcome:
    """What one fault showed: `broken` says how the promise was broken, None where it was kept."""

    name: str
    done: str
    promised: str
    seen: str
    broken: str | None = None


def run_fault(fault: Fault, shared: Path) -> Outcome:
    """Does it in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix=f"fault-{fault.name}-"))
    begun = time.monotonic()
    broken = None
    try:
        seen = fault.run(Bench(folder, shared))
    except AssertionError as error:
        seen, broken = str(error) or "not what was promised", traceback.format_exc()
    except Exception as error:  # the bench itself is at fault: that is no kept promise either
        seen, broken = f"{type(error).__name__}: {error}", traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome = Outcome(fault.name, fault.done, fault.promised, tidy(seen, folder, shared), broken)
    word = "kept" if outcome.broken is None else "BROKEN"
    print(f"{word:6} {time.monotonic() - begun:5.1f} s  {fault.name}: {outcome.seen}", flush=True)
    return outcome


def tidy(seen: str, folder: Path, shared: Path) -> str:
    """Without what differs from one machine, or one run, to the next; one line of at most 300 characters."""
    for path, name in ((folder, "…"), (shared, "…"), (ROOT, "."), (Path(tempfile.gettempdir()), "…")):
        seen = seen.replace(str(path), name)
    seen = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]+\b", "RUN", seen)
    seen = re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", seen)
    seen = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", seen)
    seen = " ".join(seen.split())
    return seen if len(seen) <= 300 else f"{seen[:299]}…"


def page(outcomes: Iterable[tuple[str, Sequence[Outcome]]]) -> str:
    """docs/reliability.md."""
    areas = [(area, found) for area, found in outcomes if found]
    count, kept = sum(len(found) for _, found in areas), sum(o.broken is None for _, found in areas for o in found)
    lines = [INTRODUCTION + f"{count} faults, {kept} promises kept.\n"]
    for area, found in areas:
        lines += [f"\n## {AREAS[area]}\n", "| fault | promised | seen | kept |", "|---|---|---|---|"]
        for outcome in found:
            cells = (outcome.done, outcome.promised, outcome.seen, "**no**" if outcome.broken else "yes")
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description="Do every fault for real.")
    parser.add_argument("--only", help="areas, or what a fault's name holds, with commas; writes no page")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--keep", type=Path, help="write the outcomes into this file, and no page")
    parser.add_argument("--kept", type=Path, nargs="+", help="run nothing: write the page of such files")
    options = parser.parse_args()
    if options.kept:
        outcomes = from_kept(options.kept)
    else:
        wanted = [""] if options.only is None else options.only.split(",")
        chosen = {
            area: [f for f in faults_of(area) if any(one == area or one in f.name for one in wanted)] for area in AREAS
        }
        outcomes = run_all(chosen, options.jobs)
    broken = [outcome for found in outcomes.values() for outcome in found if outcome.broken is not None]
    for outcome in broken:
        print(f"\n{outcome.name}: promised: {outcome.promised}\n{outcome.broken}", file=sys.stderr)
    if options.keep is not None:
        plain = {area: [asdict(outcome) for outcome in found] for area, found in outcomes.items()}
        options.keep.write_text(json.dumps(plain, ensure_ascii=False, indent=1), encoding="utf-8")
    elif options.only is None:
        PAGE.write_text(page(outcomes.items()), encoding="utf-8")
    print(f"{sum(map(len, outcomes.values()))} faults, {len(broken)} promises broken.")
    return 1 if broken else 0


def run_all(chosen: Mapping[str, Sequence[Fault]], jobs: int) -> dict[str, list[Outcome]]:
    """Does them, so many at a time; outcomes by area, in their order."""
    with tempfile.TemporaryDirectory(prefix="faults-") as made, ThreadPoolExecutor(jobs) as pool:
        shared = Path(made)
        Bench.prepare(shared)
        futures = {area: [pool.submit(run_fault, f, shared) for f in faults] for area, faults in chosen.items()}
        return {area: [future.result() for future in found] for area, found in futures.items()}


def from_kept(files: Iterable[Path]) -> dict[str, list[Outcome]]:
    """Outcomes that `--keep` wrote, a later file's before an earlier one's; every fault there is must be among them.

    Raises:
        SystemExit: one is missing.
    """
    kept: dict[tuple[str, str], Outcome] = {}
    for file in files:
        for area, found in json.loads(file.read_text(encoding="utf-8")).items():
            kept |= {(area, each["name"]): Outcome(**each) for each in found}
    missing = [f"{area}/{fault.name}" for area in AREAS for fault in faults_of(area) if (area, fault.name) not in kept]
    if missing:
        raise SystemExit(f"These faults are in none of the files: {', '.join(missing)}.")
    return {area: [kept[area, fault.name] for fault in faults_of(area)] for area in AREAS}


if __name__ == "__main__":
    sys.exit(main())
