"""Drafts (MTP) for text-only checkpoints: vLLM knows a draft head by the type of the model that ships it."""

from typing import Any

TEXT_ONLY, WITH_VISION = "qwen3_5_moe_text", "qwen3_5_moe"
_BEFORE: Any = None


def draft_config(config: Any) -> Any:
    """vLLM's own change of a configuration into that of its draft head, text-only ones included.

    A function of a module, since vLLM sends it to its other processes.
    """
    if getattr(config, "model_type", None) == TEXT_ONLY:
        if getattr(config, "mtp_num_hidden_layers", None) is None:
            config.mtp_num_hidden_layers = 1  # as its draft model assumes it; its configuration's reader does not
        config.model_type = WITH_VISION
    return _BEFORE(config)


def draft_for_text_only() -> None:
    """Let `speculative_config` of the method `mtp` take a text-only checkpoint's own draft head."""
    global _BEFORE
    from vllm.config import SpeculativeConfig

    there = getattr(SpeculativeConfig, "hf_config_override", None)  # a vLLM without it starts as it did
    if there is not None and there is not draft_config:
        _BEFORE = there
        SpeculativeConfig.hf_config_override = staticmethod(draft_config)
