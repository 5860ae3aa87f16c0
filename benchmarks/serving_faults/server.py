"""A real vLLM as a server, with the faults' plug-in."""

from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.serving_faults.switch import Switch
from tests.q36eval.openai.server import SANDBOX
from tests.q36eval.openai.vllm_server import vllm

__all__ = ["SANDBOX", "serving"]

OPTIONS = (
    *("--max-logprobs", "20", "--max-num-seqs", "16", "--num-gpu-blocks-override", "96"),
    *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--reasoning-parser", "qwen3"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
)
"""A small cache, so that prompts are pushed out of it by few requests."""


EVERY_LOG_PROBABILITY = ("--max-logprobs", "-1")


def serving(python: str | Path, switched: Switch, *options: str) -> AbstractContextManager[str]:
    """The sandbox's reference, served until the block ends; gives its address. Raises as `vllm`."""
    return vllm(python, switched.folder / "log.txt", *OPTIONS, *options, variables=switched.variables)
