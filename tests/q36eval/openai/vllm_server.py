"""A real vLLM that serves the sandbox's reference, for tests and benchmarks, or any server that a command starts."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.q36eval.openai.server import SANDBOX

START_SECONDS = 900.0
OPTIONS = (
    *("--served-model-name", SANDBOX.name, "--dtype", "bfloat16", "--generation-config", "vllm"),
    *("--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "4"),
)
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@contextmanager
def vllm(
    python: str | Path, log: Path, *options: str, port: int | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Served until the block ends, at a free port where none is named; gives its address. Of an option given here and
    in `OPTIONS` this one counts.

    Raises:
        RuntimeError: it does not start; with the last lines of its log.
    """
    port = free_port() if port is None else port
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", SANDBOX, *OPTIONS]
    with running([*command, *options], port, log, "vLLM", VARIABLES | (variables or {})) as address:
        yield address


@contextmanager
def running(
    command: Sequence[object], port: int, log: Path, program: str, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A server by that command, at that port of this machine, until the block ends; gives its address once healthy.

    Raises:
        RuntimeError: it does not start; with the last lines of its log.
    """
    place = ("--host", "127.0.0.1", "--port", port)
    with log.open("w") as lines:
        environment = os.environ | (variables or {})
        process = subprocess.Popen(
            [*map(str, (*command, *place))], env=environment, stdout=lines, stderr=subprocess.STDOUT
        )
    try:
        await_start(process, f"http://127.0.0.1:{port}", log, program)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(timeout=120)


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_start(process: "subprocess.Popen[bytes]", root: str, log: Path, program: str) -> None:
    """Return once the server at `root` is healthy.

    Raises:
        RuntimeError: it ended, or takes too long; with the last lines of its log.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{program} ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            if httpx.get(f"{root}/health", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"{program} did not start: {log.read_text(errors='replace')[-2000:]}")
