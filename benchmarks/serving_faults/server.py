"""A real vLLM as a server, with the faults' plug-in."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.serving_faults.switch import Switch

SANDBOX = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
START_SECONDS = 900.0
OPTIONS = [
    *("--dtype", "bfloat16", "--enforce-eager", "--generation-config", "vllm", "--max-logprobs", "20"),
    *("--max-model-len", "4096", "--max-num-seqs", "16", "--num-gpu-blocks-override", "96"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
]
"""A small cache, so that prompts are pushed out of it by few requests."""
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@contextmanager
def serving(python: str | Path, switched: Switch) -> Iterator[str]:
    """The sandbox's reference, served until the block ends; gives its address.

    Raises:
        RuntimeError: it does not start; with the last lines of its log.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    root, log = f"http://127.0.0.1:{port}", switched.folder / "log.txt"
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(SANDBOX), *OPTIONS]
    command += ["--served-model-name", SANDBOX.name, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as lines:
        variables = os.environ | VARIABLES | switched.variables
        process = subprocess.Popen(command, env=variables, stdout=lines, stderr=subprocess.STDOUT)
    try:
        _await_start(process, root, log)
        yield f"{root}/v1"
    finally:
        process.terminate()
        process.wait(timeout=120)


def _await_start(process: "subprocess.Popen[bytes]", root: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"vLLM ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            if httpx.get(f"{root}/health", timeout=5.0).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(1.0)
    raise RuntimeError(f"vLLM did not start: {log.read_text(errors='replace')[-2000:]}")
