"""Commands on several GPUs of one machine at once, told as they end: `python -m benchmarks.side_by_side PLAN OUT`.

PLAN is YAML, as `served_on_gpus.yaml`: of every column the GPUs that its commands see and the commands, one after the
other, each with the seconds that it may take at most; `after` waits for other columns first. Each is given to bash with
`$OUT`, a folder of its own below OUT, and its output goes to `OUT/NAME.log`.

    --start        begin them in a process of their own, which goes on when this one ends, and return
    --wait SECONDS print what has ended and what is under way, once all has or so many seconds later
    --only COLUMN  these columns alone, and none that they would wait for

Without either both are done in this process. A command that fails or takes too long is told and stops no other.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

UNDER_WAY, TOO_LONG = "under way", "took too long"
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$")]


class Step(BaseModel):
    """One command."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    seconds: float = Field(gt=0)
    command: str


class Column(BaseModel):
    """Commands one after the other on these GPUs."""

    model_config = ConfigDict(extra="forbid")

    gpus: str
    after: list[Name] = Field(default_factory=list)
    steps: list[Step] = Field(min_length=1)


class Plan(BaseModel):
    """All columns by name."""

    model_config = ConfigDict(extra="forbid")

    columns: dict[Name, Column]

    @model_validator(mode="after")
    def _fits(self) -> "Plan":
        names = [step.name for column in self.columns.values() for step in column.steps]
        if len(set(names)) < len(names):
            raise ValueError("two commands have one name")
        begun: set[str] = set()
        for name, column in self.columns.items():
            if set(column.after) - begun:
                raise ValueError(f"{name} waits for a column that does not stand before it")
            begun.add(name)
        return self

    @classmethod
    def read(cls, file: Path) -> "Plan":
        """From a file; raises pydantic's ValidationError."""
        return cls.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))

    def only(self, names: list[str]) -> "Plan":
        """Of these columns; raises ValueError where one is not there."""
        if unknown := [name for name in names if name not in self.columns]:
            raise ValueError(f"there is no column {unknown[0]}, but {', '.join(self.columns)}")
        kept = {name: column for name, column in self.columns.items() if name in names}
        return Plan(
            columns={
                name: column.model_copy(update={"after": [each for each in column.after if each in kept]})
                for name, column in kept.items()
            }
        )


def run(plan: Plan, out: Path) -> None:
    """All of it; of each command `OUT/NAME.json` says how it ended."""
    ended = {name: threading.Event() for name in plan.columns}

    def column(name: str) -> None:
        try:
            for other in plan.columns[name].after:
                ended[other].wait()
            for step in plan.columns[name].steps:
                _run(step, plan.columns[name].gpus, out)
        finally:
            ended[name].set()

    threads = [threading.Thread(target=column, args=[name]) for name in plan.columns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run(step: Step, gpus: str, out: Path) -> None:
    folder, log = out / step.name, out / f"{step.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    _tell(out, step, UNDER_WAY, 0.0)
    begun = time.monotonic()
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": gpus, "OUT": str(folder)}
    with log.open("w") as lines:
        process = subprocess.Popen(
            ["bash", "-c", step.command],
            stdout=lines,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            how = f"exit {process.wait(step.seconds)}"
        except subprocess.TimeoutExpired:
            how = TOO_LONG
            os.killpg(process.pid, signal.SIGTERM)  # a server that it started is to be ended by it
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    with suppress(ProcessLookupError):  # what it left behind would hold the GPU of the next one
        os.killpg(process.pid, signal.SIGKILL)
    _tell(out, step, how, time.monotonic() - begun)


def _tell(out: Path, step: Step, how: str, seconds: float) -> None:
    file = out / f"{step.name}.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"how": how, "seconds": round(seconds, 1)}))
    part.replace(file)


def table(plan: Plan, out: Path) -> tuple[str, bool]:
    """A row a command, with the last line of its log, and whether all have ended."""
    rows, all_ended = ["| command | GPUs | how | seconds | last line |", "|---|---|---|---|---|"], True
    for column in plan.columns.values():
        for step in column.steps:
            file, log = out / f"{step.name}.json", out / f"{step.name}.log"
            told = json.loads(file.read_text()) if file.exists() else {"how": "not begun", "seconds": 0}
            all_ended = all_ended and file.exists() and told["how"] != UNDER_WAY
            lines = [line for line in log.read_text(errors="replace").splitlines() if line] if log.exists() else []
            last = lines[-1].replace("|", "¦")[-120:] if lines else ""
            rows.append(f"| {step.name} | {column.gpus} | {told['how']} | {told['seconds']:.0f} | {last} |")
    return "\n".join(rows), all_ended


def main() -> int:
    """Begin, wait, or both; 0 once all has ended, 75 where something is left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--start", action="store_true")
    parser.add_argument("--wait", type=float, metavar="SECONDS")
    parser.add_argument("--only", nargs="+", metavar="COLUMN", default=[])
    asked = parser.parse_args()
    plan, out = Plan.read(asked.plan), asked.out.resolve()
    try:
        plan = plan.only(asked.only) if asked.only else plan
    except ValueError as error:
        parser.error(str(error))
    out.mkdir(parents=True, exist_ok=True)
    if asked.start:
        command = [sys.executable, "-m", "benchmarks.side_by_side", str(asked.plan.resolve()), str(out)]
        command += ["--only", *asked.only] if asked.only else []
        with (out / "side_by_side.log").open("w") as lines:
            subprocess.Popen(command, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True)
        return 0
    if asked.wait is None:
        run(plan, out)
    ends = time.monotonic() + (asked.wait or 0.0)
    while not table(plan, out)[1] and time.monotonic() < ends:
        time.sleep(1)
    text, all_ended = table(plan, out)
    print(text)
    return 0 if all_ended else 75


if __name__ == "__main__":
    sys.exit(main())
