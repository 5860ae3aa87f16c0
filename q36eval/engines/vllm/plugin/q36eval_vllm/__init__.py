"""What q36eval needs inside vLLM, installed into vLLM's own environment.

vLLM calls `register` once in each of its processes (entry point group `vllm.general_plugins`). Nothing here imports
q36eval, whose environment is another one. `worker` is the program that q36eval starts and speaks to; `capture` takes
final hidden states; `patches` lets vLLM load what it does not load by itself.
"""

from contextlib import suppress

PROTOCOL = 5
"""Raised with every change of what `worker` reads or writes, or of what vLLM loads by us; q36eval refuses others."""


def register() -> None:
    """Called by vLLM, in every process, before a model is loaded."""
    from .patches import draft_for_text_only, load_block_scaled_heads, register_text_only

    for patch in (register_text_only, draft_for_text_only, load_block_scaled_heads):
        with suppress(ImportError, AttributeError):  # a vLLM that lacks the place loads what it loads by itself
            patch()
