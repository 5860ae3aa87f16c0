"""Models that vLLM does not load itself: the text model alone, FP8 heads with block scales, drafts of the former."""

from functools import wraps
from typing import Any

NAME = "Qwen3_5MoeForCausalLM"
"""The name in checkpoints without a vision tower."""
TEXT_ONLY, WITH_VISION = "qwen3_5_moe_text", "qwen3_5_moe"
"""The model types by which vLLM detects a draft head."""
_BEFORE: Any = None


def register_text_only() -> None:
    """Register the architecture in a vLLM that has the class but does not register it (0.26)."""
    from vllm import ModelRegistry

    if NAME in ModelRegistry.get_supported_archs():
        return
    ModelRegistry.register_model(NAME, "q36eval_vllm.text_model:TextModel")
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP, Qwen3_5ForConditionalGenerationConfig

    MODELS_CONFIG_MAP[NAME] = Qwen3_5ForConditionalGenerationConfig


def load_block_scaled_heads() -> None:
    """Give `VocabParallelEmbedding` a weight loader that supports block scales.

    They have a row per 128 vocabulary rows: vLLM 0.26 expects one for each.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.parameter import BlockQuantScaleParameter

    original = VocabParallelEmbedding.weight_loader
    if hasattr(original, "__wrapped__"):  # vLLM may load plug-ins twice in one process
        return

    @wraps(original)
    def weight_loader(self: Any, param: Any, loaded_weight: Any) -> None:
        is_block_scale = isinstance(param, BlockQuantScaleParameter) and loaded_weight.dim() == 2
        if not is_block_scale or loaded_weight.shape[0] == self.org_vocab_size:
            original(self, param, loaded_weight)
            return
        block = int(self.weight_block_size[0])
        begin, end = self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index
        if loaded_weight.shape[0] != -(-self.org_vocab_size // block):
            raise ValueError(f"the head has {loaded_weight.shape[0]} rows of scales for {self.org_vocab_size} tokens")
        if begin % block:
            raise ValueError(
                f"a device's share of the head begins at token {begin}, within a block of {block} that has one scale; "
                f"split it over fewer devices (tensor_parallel_size)"
            )
        own = loaded_weight[begin // block : -(-end // block)]
        rows, columns = own.shape
        if param.shape[0] < rows or param.shape[1] != columns:
            raise ValueError(f"the head's scales are {rows}x{columns}, and {tuple(param.shape)} were expected")
        param.data[:rows].copy_(own)
        param.data[rows:].fill_(1)  # rows that pad the vocabulary

    VocabParallelEmbedding.weight_loader = weight_loader


def draft_config(config: Any) -> Any:
    """vLLM's own change of a configuration into that of its draft head, for text-only models, too.

    A module-level function, since vLLM sends it to its other processes.
    """
    if getattr(config, "model_type", None) == TEXT_ONLY:
        if getattr(config, "mtp_num_hidden_layers", None) is None:
            config.mtp_num_hidden_layers = 1  # as its draft model assumes; its configuration reader does not
        config.model_type = WITH_VISION
    return _BEFORE(config)


def draft_for_text_only() -> None:
    """Let `speculative_config` of the method `mtp` take a text-only checkpoint's own draft head."""
    global _BEFORE
    from vllm.config import SpeculativeConfig

    there = getattr(SpeculativeConfig, "hf_config_override", None)  # a vLLM without it stays unchanged
    if there is not None and there is not draft_config:
        _BEFORE = there
        SpeculativeConfig.hf_config_override = staticmethod(draft_config)
