"""A real llama.cpp that serves the sandbox's reference, as its own converter writes it, for tests."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import await_start, free_port

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
    command += ["--host", "127.0.0.1", "--port", port, "--threads", 2]
    command += ["--parallel", 4, "--ctx-size", 4 * 4096, *options]
    with log.open("w") as lines:
        process = subprocess.Popen([*map(str, command)], stdout=lines, stderr=subprocess.STDOUT)
    try:
        await_start(process, root, log, "llama-server")
        yield f"{root}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)
