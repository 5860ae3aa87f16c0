"""The part of q36eval inside vLLM, installed into vLLM's own environment.

vLLM calls `register` once in each of its processes (entry point group `vllm.general_plugins`). Nothing here imports
q36eval, which has a separate environment. `worker` is the program that q36eval starts and communicates with; `capture`
takes final hidden states; `patches` lets vLLM load models that it does not support itself.
"""

from contextlib import suppress

PROTOCOL = 5
"""Raised with every change of the messages of `worker`, or of our changes to vLLM's loading; q36eval refuses others."""


def register() -> None:
    """Called by vLLM, in every process, before a model is loaded."""
    from .patches import draft_for_text_only, load_block_scaled_heads, register_text_only

    for patch in (register_text_only, draft_for_text_only, load_block_scaled_heads):
        with suppress(ImportError, AttributeError):  # a vLLM without this attribute stays unchanged
            patch()
