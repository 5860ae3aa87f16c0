"""A real vLLM that serves the sandbox's reference, for tests and benchmarks."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
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
    with starting(python, log, *options, port=port, variables=variables) as (process, root):
        await_start(process, root, log)
        yield f"{root}/v1"


@contextmanager
def starting(
    python: str | Path, log: Path, *options: str, port: int | None = None, variables: Mapping[str, str] | None = None
) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """Its process and its root while it starts, and until the block ends, in which `await_start` waits for it."""
    port = free_port() if port is None else port
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(SANDBOX), *OPTIONS]
    command += ["--host", "127.0.0.1", "--port", str(port), *options]
    with log.open("w") as lines:
        environment = os.environ | VARIABLES | (variables or {})
        process = subprocess.Popen(command, env=environment, stdout=lines, stderr=subprocess.STDOUT)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=120)


def free_port() -> int:
    """One that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_start(process: "subprocess.Popen[bytes]", root: str, log: Path, program: str = "vLLM") -> None:
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
