"""What the engines of a rehearsal did: tokens and seconds by deployment and group of requests, memory every second."""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from q36eval.engines.base import Generated, Scored

SECONDS_BETWEEN_SAMPLES = 1.0


class Records:
    """Kept in memory, written to `folder` every second, so that a killed gate leaves what it did."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._loads: list[dict[str, Any]] = []
        self._work: dict[tuple[str, str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._begun = time.time()

    def keep_in(self, folder: Path) -> None:
        """From here on memory is sampled and all is written."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        threading.Thread(target=self._follow, name="records", daemon=True).start()

    @contextmanager
    def loading(self, folder: Path) -> Iterator[None]:
        """An engine of that folder is opened."""
        begun, before = time.time(), _memory()
        yield
        load = {"deployment": folder.name, "seconds": time.time() - begun, "at": begun}
        self._loads.append(load | {"before": before, "after": _memory()})

    def planned(self, plan: str | None) -> None:
        """What the engine that was loaded last plans with its memory."""
        self._loads[-1]["plan"] = plan

    def scored(self, deployment: str, scored: Scored) -> None:
        """One more text was read."""
        work = self._work[deployment, "scored", _stem(scored.request.group)]
        self._add(work, scored.seconds + scored.repeated_seconds, scored.error)
        work["tokens"] += len(scored.request.token_ids)
        work["shared_tokens"] += scored.request.shared

    def generated(self, deployment: str, generated: Generated) -> None:
        """One more answer was given."""
        request = generated.request
        length = 1 << (len(request.token_ids) - 1).bit_length()
        group = f"{_stem(request.group)}, prompt to {length:,}, answer to {int(request.max_new_tokens):,}"
        work = self._work[deployment, "generated", group]
        work["length"], work["answer"] = length, int(request.max_new_tokens)
        self._add(work, generated.seconds + generated.repeated_seconds, generated.error)
        work["prompt_tokens"] += len(request.token_ids)
        work["tokens"] += len(generated.token_ids)
        work["rows"] += generated.rows

    def _add(self, work: dict[str, float], seconds: float, error: str | None) -> None:
        now = time.time()
        work["requests"] += 1
        work["errored"] += error is not None
        work["seconds"] += seconds
        work.setdefault("first_at", now)
        work["last_at"] = now

    def write(self) -> None:
        """What was done so far."""
        if self._folder is None:
            return
        work = [
            {"deployment": deployment, "how": how, "group": group} | dict(figures)
            for (deployment, how, group), figures in list(self._work.items())
        ]
        content = {"begun": self._begun, "written": time.time(), "loads": self._loads, "work": work}
        path = self._folder / f"records-{os.getpid()}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(content | {"last": _memory()}))
        part.replace(path)

    def _follow(self) -> None:
        assert self._folder is not None
        with (self._folder / f"memory-{os.getpid()}.jsonl").open("w") as lines:
            while True:
                time.sleep(SECONDS_BETWEEN_SAMPLES)
                with suppress(
                    RuntimeError, OSError, AttributeError
                ):  # work goes on, and torch is perhaps being imported
                    sample = {"at": time.time()} | _memory()
                    lines.write(json.dumps(sample) + "\n")
                    lines.flush()
                    self.write()


def _stem(group: str) -> str:
    """Without the number of a block."""
    return "/".join(part for part in group.split("/")[:3] if not part.isdigit())


def _memory() -> dict[str, float]:
    """In bytes: this process's, the machine's, and the device's as its allocator and its driver see it."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    machine = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines() if ":" in line)

    def kib(value: str) -> float:
        return float(value.split()[0]) * 1024

    figures = {
        "host": kib(status["VmRSS"]),
        "host_peak": kib(status["VmHWM"]),
        "machine_available": kib(machine["MemAvailable"]),
        "machine_shared": kib(machine["Shmem"]),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        figures |= {
            "allocated": float(torch.cuda.memory_allocated()),
            "allocated_peak": float(torch.cuda.max_memory_allocated()),
            "reserved": float(torch.cuda.memory_reserved()),
            "reserved_peak": float(torch.cuda.max_memory_reserved()),
            "driver": float(total - free),
        }
    return figures


RECORDS = Records()
"""Of this process."""
