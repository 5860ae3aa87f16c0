"""Where vLLM's own process finds the faults' plug-in, and the file by which it is told which fault to show."""

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "q36eval_serving_faults"
VARIABLE = "Q36EVAL_SERVING_FAULT"
PLUGIN = Path(__file__).parent / "plugin"


@dataclass(frozen=True)
class Switch:
    """A folder with the plug-in's metadata, as if it were installed there, and the file that the plug-in looks at."""

    folder: Path

    @property
    def file(self) -> Path:
        """It holds the fault's name."""
        return self.folder / "fault"

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which vLLM finds both."""
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), str(PLUGIN)]), VARIABLE: str(self.file)}

    def interpreter(self, python: str | Path) -> Path:
        """A Python with these variables, for what starts one without the PYTHONPATH of its own."""
        script = self.folder / "python"
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        script.write_text(f'#!/bin/sh\n{variables} exec {shlex.quote(str(python))} "$@"\n')
        script.chmod(0o755)
        return script

    def show(self, fault: str) -> None:
        """From the next step on that fault; none for an empty name."""
        waiting = self.folder / "next"
        waiting.write_text(fault)
        os.replace(waiting, self.file)


@contextmanager
def switch(fault: str = "") -> Iterator[Switch]:
    """A switch that begins with that fault."""
    folder = Path(tempfile.mkdtemp(prefix="q36eval-serving-faults-"))
    information = folder / f"{DISTRIBUTION}-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{DISTRIBUTION} = {DISTRIBUTION}:register\n")
    made = Switch(folder)
    made.show(fault)
    try:
        yield made
    finally:
        shutil.rmtree(folder)
