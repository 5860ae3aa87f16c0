"""All that only a GPU can show of the engine in process at the full shape, in one command that is called again.

    python -m benchmarks.on_gpu FOLDER RESULTS --minutes 9

goes through the parts below in order and stops in time; called again it goes on where it stopped, so that four calls of
ten minutes do. PART names choose some. FOLDER takes 21 GiB on a disk, `--reference` 65 GiB (by default /dev/shm/bf16,
in memory); RESULTS gets every part's figures (`NAME.json`), what it printed (`NAME.log`) and `figures.md`, which is
printed too. Each call copies there what earlier ones found. A part that fails says why and is not tried again unless
it is named; the others do not wait for it.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BRANCH = "fp8-head"
SCRIPTS = Path(__file__).parent
NOT_DONE = 75
"""As `benchmarks.rehearsal` ends where time was up before the gate ended, and as this does."""
RESERVE_S = 20.0
"""For what is written and printed at the end of a call."""
WORTH_BEGINNING_S = 150.0
"""What goes on later is begun at the end of a call where so much is left: a gate hashes 85 GiB each time."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One command: about how many seconds it takes, what it runs, and its figures in a line.

    One that `goes_on` may be stopped at any time, and does not lose what it did.
    """

    name: str
    seconds: int
    command: list[str]
    told: Callable[[Figures], str]
    goes_on: bool = False


def parts_of(folder: Path, reference: Path, asked: argparse.Namespace) -> list[Part]:
    """All of them, in order; {out} is where a command's figures go."""
    device, branch = str(asked.device), str(folder / BRANCH)
    amounts = ["--documents", str(asked.documents), "--tokens", str(asked.tokens), "--long", str(asked.long)]

    def script(name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(SCRIPTS / name), *arguments]

    def rehearsal(*arguments: str) -> list[str]:
        where = [str(folder), "--reference", str(reference), "--device", device, *asked.rehearsal.split()]
        return [sys.executable, "-m", "benchmarks.rehearsal", *where, *arguments]

    def placements(where: Path | str, limit: int, *chosen: str) -> list[str]:
        given = ["--device", device, "--limit-gib", str(limit), *amounts, "--out", "{out}"]
        return script("placements.py", str(where), *given, "--placements", *chosen)

    steps = ["--after-only", "--out", "{out}"]
    plan = [sys.executable, "-m", "benchmarks.memory_plan", branch, "--device", device, "--out", "{out}"]
    return [
        Part("write", 180, rehearsal("write"), _written, goes_on=True),
        Part("decoded", 240, script("steps.py", branch, *steps, "--batch", "2", "8"), _stepped),
        Part(
            "packed-24",
            100,
            script("steps.py", branch, *steps, "--placement", "packed", "--limit-gib", "24", "--rows", "1", "2"),
            _stepped,
        ),
        Part("plan-32", 90, [*plan, "--placement", "packed", "--limit", "32"], _planned),
        Part("reference-24", 240, placements(reference, 24, "decoded", "layers"), _placed),
        Part("reference-8", 120, placements(reference, 8, "layers"), _placed),
        # what it computes in is the pass of reference-24 over weights that are there: the shape is the same
        Part("branch-from-disk", 120, [*placements(branch, 24, "layers"), "--cold"], _placed),
        Part(
            "inspect",
            80,
            script("inspect_shape.py", branch, str(reference), "--device", device, "--inspect-only"),
            _inspected,
        ),
        Part("gate", 1200, rehearsal("gate", "report", "--minutes", "{minutes}"), _rehearsed, goes_on=True),
    ]


NEEDS_GPU = ("decoded", "packed-24", "plan-32")
"""What is measured there has no like on a CPU."""


# ---- one call ----


def main() -> int:
    """Run what is not done yet; 0 once all is, 75 where a further call goes on, 1 where a part failed."""
    asked = _arguments()
    ends = time.monotonic() + asked.minutes * 60 - RESERVE_S
    folder, results = asked.folder.resolve(), asked.results.resolve()
    own = folder / "figures"
    own.mkdir(parents=True, exist_ok=True)
    results.mkdir(parents=True, exist_ok=True)
    parts = parts_of(folder, asked.reference.resolve(), asked)
    chosen = [part for part in parts if not asked.parts or part.name in asked.parts]
    chosen = [part for part in chosen if asked.device != "cpu" or part.name not in NEEDS_GPU]
    begun_any, waiting = False, []
    for part in chosen:
        if _is_done(own, part) or (_failed(own, part) and part.name not in asked.parts):
            continue
        left = ends - time.monotonic()
        needed = min(part.seconds, WORTH_BEGINNING_S) if part.goes_on else part.seconds
        if left < 5 or (begun_any and left < needed):
            waiting.append(part.name)
            continue
        begun_any = True
        if not _run(part, own, left):
            waiting.append(part.name)
        if part.name == "gate":
            _take_rehearsal(folder, own)
    text = table(own, parts)
    (own / "figures.md").write_text(text)
    shutil.copytree(own, results, dirs_exist_ok=True)
    print(f"\n{text}", flush=True)
    if waiting:
        print(f"\nNot done: {', '.join(waiting)}. Run the same command again to go on.", flush=True)
        return NOT_DONE
    return 1 if any(_failed(own, part) for part in chosen) else 0


def _run(part: Part, own: Path, seconds: float) -> bool:
    """Run a part, at most so long; whether it ended, well or not."""
    out, log = own / f"{part.name}.json", own / f"{part.name}.log"
    minutes = f"{max(5.0, seconds - 70) / 60:.2f}"  # a gate that is stopped has some seconds to end
    command = [each.replace("{out}", str(out)).replace("{minutes}", minutes) for each in part.command]
    print(f"{part.name}: {' '.join(command[1:])}", flush=True)
    (own / f"{part.name}.failed").unlink(missing_ok=True)
    begun = time.time()
    with log.open("a") as lines:
        paths = [str(SCRIPTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]  # it need not be installed
        own_path = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        process = subprocess.Popen(
            command, stdout=lines, stderr=subprocess.STDOUT, env=own_path, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = NOT_DONE
    spent = own / f"{part.name}.seconds"
    spent.write_text(str(round(time.time() - begun + (float(spent.read_text()) if spent.exists() else 0.0), 1)))
    tail = log.read_text(errors="replace").splitlines()
    if code == NOT_DONE:
        print(f"{part.name}: not done after {seconds:.0f} s", flush=True)
        return False
    if part.name == "inspect" and code == 0:  # it prints its figures, and all that it says of 30,000 weights
        figures = json.loads(tail.pop())
        said = figures.pop("said")
        figures |= {"compared_weights": said["compared_weights"], "findings": len(said["findings"])}
        out.write_text(json.dumps(figures))
        log.write_text("\n".join(tail))
    (own / f"{part.name}.{'done' if code == 0 else 'failed'}").write_text(str(code))
    if code:
        print("\n".join([f"{part.name}: exit code {code}", *tail[-15:]]), flush=True)
    return True


def _is_done(own: Path, part: Part) -> bool:
    return (own / f"{part.name}.done").exists()


def _failed(own: Path, part: Part) -> bool:
    return (own / f"{part.name}.failed").exists()


def _take_rehearsal(folder: Path, own: Path) -> None:
    """What the rehearsal wrote: its report, its log with the second of each line, memory second by second."""
    for name in ("rehearsal.json", "rehearsal.md", "gate.log", "gates.jsonl", "usage.jsonl"):
        if (folder / name).is_file():
            shutil.copy(folder / name, own)
    if (folder / "rehearsal.json").is_file():
        shutil.copy(folder / "rehearsal.json", own / "gate.json")
    if (folder / "records").is_dir():
        shutil.copytree(folder / "records", own / "records", dirs_exist_ok=True)


# ---- figures in a line ----


def table(own: Path, parts: list[Part]) -> str:
    """What is known so far, a line a part."""
    lines = ["| part | seconds | figures |", "|---|---|---|"]
    for part in parts:
        out, spent = own / f"{part.name}.json", own / f"{part.name}.seconds"
        state = "" if _is_done(own, part) else "FAILED; " if _failed(own, part) else "not done; "
        try:
            told = part.told(json.loads(out.read_text()) if out.exists() else {})
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            told = f"figures cannot be read: {type(error).__name__} {error}"
        lines.append(f"| {part.name} | {spent.read_text() if spent.exists() else ''} | {state}{told} |")
    return "\n".join(lines)


def _written(figures: Figures) -> str:
    return "branch, reference, texts and items"


def _stepped(figures: Figures) -> str:
    if not figures:
        return ""
    told = [
        f"{figures['device']}: loaded in {figures['load_seconds']:.1f} s; peaks {figures['load_peak_gib']} GiB on the "
        f"device (allocated / reserved), {figures['host_peak_gib']:.1f} of host"
    ]
    for prefill in filter(None, figures["prefill"]):
        rates = list(prefill["tokens_per_second"].values())
        rate = f"{rates[0]:,.0f} tokens/s, inputs quantized {rates[-1]:,.0f} ({rates[-1] / rates[0]:.2f}×)"
        told.append(f"{prefill['batch']} texts together: {rate}, peak {prefill['peak_gib']}")
    for rows, step in figures["steps"].items():
        told.append(f"{rows} rows: " + ("do not fit" if step is None else f"{step['after']:.1f} ms a step"))
    return "; ".join(told)


def _planned(figures: Figures) -> str:
    if not figures:
        return ""
    told = [figures["plan"]]
    for batch in figures["batches"]:
        share = "" if batch["peak"] is None else f"{batch['peak'] / batch['planned']:.2f} of what is planned, "
        told.append(f"{batch['batch']}: {share}{batch['seconds']:.1f} s, split {batch['splits']} times")
    return "; ".join(told)


def _placed(figures: Figures) -> str:
    if not figures:
        return ""
    rows = figures["rows"]
    told = [] if figures["read"] is None else [f"reading all bytes {figures['read']:.1f} s"]
    for name, row in rows.items():
        if row is None:
            told.append(f"{name}: does not fit")
            continue
        held = f", {row['allocated'] / 2**30:.1f} / {row['reserved'] / 2**30:.1f} GiB" if "allocated" in row else ""
        held += f", cache emptied {row['emptied']} times" if row.get("emptied") else ""
        told.append(f"{name}: load {row['load']:.1f} s, {row['tokens']:,} tokens in {row['score']:.1f} s{held}")
    measured = [row for row in rows.values() if row is not None]
    if len(measured) > 1:
        one, other = measured[0], measured[-1]
        whole = (other["load"] + other["score"]) / (one["load"] + one["score"])
        told.append(f"the last to the first: scoring {other['score'] / one['score']:.2f}×, with loading {whole:.2f}×")
        told.append("same bits" if one["sha256"] == other["sha256"] else "NOT the same bits")
    return "; ".join(told)


def _inspected(figures: Figures) -> str:
    if not figures:
        return ""
    weights, peak = figures["compared_weights"], figures.get("device_peak")
    held = "" if peak is None else f", device peak {peak / 2**30:.1f} GiB"
    return (
        f"{figures['seconds']:.1f} s, {weights:,} weights compared, host peak {figures['host_peak'] / 2**30:.1f}{held}"
    )


def _rehearsed(figures: Figures) -> str:
    if not figures:
        return ""
    peaks, silences = figures["peaks_gib"], figures["longest_silences"]
    told = [f"{figures['verdict']}, exit codes {figures['exit_codes']}, {figures['gate_seconds']:.0f} s of gate"]
    told += [f"longest silence {silences[0]['seconds']:.1f} s"] if silences else []
    named = ("allocated_peak", "reserved_peak", "driver", "host_peak")
    told.append("peaks in GiB: " + ", ".join(f"{n} {peaks[n]:.1f}" for n in named if peaks.get(n) is not None))
    told.append(f"a release gate takes {figures['release']['hours']:.2f} hours")
    return "; ".join(told + figures["problems"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("write", "decoded", "packed-24", "plan-32", "reference-24", "reference-8", "branch-from-disk", "inspect")
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)}, gate; all by default")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call; 9 by default")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--reference", type=Path, default=Path("/dev/shm/bf16"))
    parser.add_argument("--documents", type=int, default=64, help="of the placements' texts")
    parser.add_argument("--tokens", type=int, default=2048, help="of each")
    parser.add_argument("--long", type=int, default=65_536, help="and of one long text")
    parser.add_argument("--rehearsal", default="", help="options of the rehearsal, as '--layers 4 --experts 8'")
    asked = parser.parse_intermixed_args()
    if unknown := set(asked.parts) - {*names, "gate"}:
        parser.error(f"no such part: {', '.join(unknown)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
