"""Runs the gate as its users do, in a process of its own, and writes down when it printed what."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any

from benchmarks.rehearsal.material import BRANCH, Amount
from q36eval.engines.base import IN_PROCESS

SCALE = "REHEARSAL_ANSWERS"
"""The environment variable with what the lengths of answers are multiplied by."""

SILENCE = 10.0
"""Seconds that a stage may say nothing."""
TOLERANCE = 1.0
"""What a line may come late by: the log wakes every ten seconds, and a busy interpreter some later."""


def state_of(folder: Path) -> Path:
    """Of the rehearsal's runs and captures."""
    return folder / "state"


def gate_command(folder: Path, how: Amount, device: str, resume: str | None, more: list[str]) -> list[str]:
    """As a person would type it."""
    material = folder / "material"
    command = ["gate", "--family", str(material / "family.yaml"), "--branch", BRANCH]
    command += ["--corpus", str(material / "corpus.yaml"), "--draws", str(how.draws), "--device", device]
    command += ["--out", str(folder / "reports")]
    return command + ([] if resume is None else ["--resume", resume]) + more


def unfinished_run(folder: Path, engine: str = IN_PROCESS) -> str | None:
    """A run by that engine that was interrupted; None where none was begun, or the last one ended."""
    latest = last_run(folder, engine)
    if latest is None or latest.state == "finished":
        return None
    asked = (folder / "material" / "family.yaml").stat().st_mtime  # another material is another request
    return str(latest.id) if latest.started.timestamp() > asked else None


def last_run(folder: Path, engine: str = IN_PROCESS) -> Any:
    """The record of the newest run of a branch in that engine; None where there is none."""
    path = state_of(folder) / "history.sqlite"
    if not path.is_file():
        return None
    from q36eval.app.cli.options import open_history
    from q36eval.config import Paths

    paths = Paths(repository=Paths.default().repository, state=state_of(folder))
    runs = open_history(paths).list_runs()  # one that was stopped early has no identity yet: it is begun anew
    return next((run for run in runs if run.identity is not None and run.identity.engine == engine), None)


GRACE_S = 60.0
"""Seconds that a stopped gate has to end: a batch under way is computed to its end."""


def files_of(folder: Path, engine: str) -> tuple[Path, Path, Path, Path]:
    """What a gate by that engine leaves: its lines, its ends, how busy the GPU was, and the folder of its records."""
    end = "" if engine == IN_PROCESS else f"-{engine}"
    names = f"gate{end}.log", f"gates{end}.jsonl", f"usage{end}.jsonl", f"records{end}"
    log, gates, usage, records = (folder / name for name in names)
    return log, gates, usage, records


def run_gate(
    folder: Path,
    how: Amount,
    device: str,
    answers: float,
    more: list[str],
    seconds: float | None = None,
    engine: str = IN_PROCESS,
) -> int:
    """The gate's exit code; its lines are in its log (`files_of`), each behind the second at which it came.

    After so many `seconds` it is stopped as by a person, and the next call goes on with it.
    """
    log_file, gates, usage_file, records = files_of(folder, engine)
    command = gate_command(folder, how, device, unfinished_run(folder, engine), ["--engine", engine, *more])
    print("q36eval " + " ".join(command), flush=True)
    begun = time.time()
    environment = os.environ | {"Q36EVAL_STATE": str(state_of(folder)), "PYTHONUNBUFFERED": "1", SCALE: str(answers)}
    with log_file.open("a", encoding="utf-8") as log:
        log.write(f"# {begun:.3f} q36eval {' '.join(command)}\n")
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rehearsal.command", str(records), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        lock = Lock()

        def follow(stream: IO[str], name: str) -> None:
            for line in stream:
                with lock:
                    log.write(f"{time.time():.3f} {name} {line.rstrip()}\n")
                    log.flush()
                    print(f"{time.time() - begun:7.1f} {line.rstrip()}", flush=True)

        readers = [
            Thread(target=follow, args=(stream, name))
            for stream, name in ((process.stdout, "out"), (process.stderr, "err"))
        ]
        for reader in readers:
            reader.start()
        usage = Thread(target=_follow_usage, args=(usage_file, process), daemon=True)
        usage.start()
        code = _ended(process, seconds)
        for reader in readers:
            reader.join()
        log.write(f"# {time.time():.3f} exit {code}\n")
    ended = {"exit_code": code, "begun": begun, "ended": time.time(), "command": command}
    with gates.open("a") as file:
        file.write(json.dumps(ended) + "\n")
    return code


def was_stopped(code: int) -> bool:
    """Whether that is no exit code of a gate which ended by itself."""
    return code not in range(5)


def _ended(process: "subprocess.Popen[str]", seconds: float | None) -> int:
    """The exit code of a process that is interrupted after so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # SIGINT is ignored by what a shell began in the background
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()  # what was measured is written
        return process.wait()


def _follow_usage(path: Path, process: "subprocess.Popen[str]") -> None:
    """How busy the GPU is, every two seconds, where a driver tells."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"]
    with path.open("a") as file:
        while process.poll() is None:
            try:
                told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout
                busy, used = (float(part) for part in told.splitlines()[0].split(","))
            except (OSError, subprocess.SubprocessError, ValueError, IndexError):
                return
            file.write(json.dumps({"at": time.time(), "busy_percent": busy, "used_mib": used}) + "\n")
            file.flush()
            time.sleep(2.0)


def silences(log: Path) -> list[dict[str, Any]]:
    """The pauses between lines of the gate, longest first: seconds, when it began, and the line before it."""
    pauses, before, said = [], None, ""
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            at, text = float(line.split()[1]), line
        else:
            stamp, _, text = line.partition(" ")
            at = float(stamp)
        if before is not None and not (line.startswith("# ") and "exit" not in line):
            pauses.append({"seconds": round(at - before, 2), "at": before, "after": said[:160]})
        before, said = at, text
    return sorted(pauses, key=lambda pause: -pause["seconds"])
