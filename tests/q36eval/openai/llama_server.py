"""A real llama.cpp that serves the sandbox's reference, as its own converter writes it, for tests."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import free_port

CONVERT = """
import sys
sources = sys.argv.pop(1)
sys.path[:0] = [sources, sources + "/gguf-py"]
from conversion import base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen35"  # the sandbox's own tokenizer is on no list
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def converted(llama: Path, folder: Path) -> Path:
    """The reference as one GGUF in BF16."""
    file = folder / "bf16.gguf"
    options = ["--outfile", str(file), "--outtype", "bf16", "--no-mtp"]
    command = [sys.executable, "-c", CONVERT, str(llama / "source"), str(SANDBOX), *options]
    subprocess.run(command, check=True, capture_output=True)
    return file


@contextmanager
def llama_server(llama: Path, file: Path, log: Path, *options: str) -> Iterator[str]:
    """Served until the block ends, for four at once with 4,096 tokens each; gives its address.

    Raises:
        RuntimeError: it does not start; with the last lines of its log.
    """
    port = free_port()
    root = f"http://127.0.0.1:{port}"
    command = [llama / "build" / "bin" / "llama-server", "--model", file, "--alias", SANDBOX.name, "--jinja"]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        port,
        "--parallel",
        4,
        "--ctx-size",
        4 * 4096,
        "--threads",
        2,
        *options,
    ]
    with log.open("w") as lines:
        process = subprocess.Popen([*map(str, command)], stdout=lines, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError(f"llama-server ended: {log.read_text(errors='replace')[-2000:]}")
            try:
                if httpx.get(f"{root}/health", timeout=5.0).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        else:
            raise RuntimeError(f"llama-server did not start: {log.read_text(errors='replace')[-2000:]}")
        yield f"{root}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)
