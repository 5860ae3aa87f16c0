"""Heads in FP8 with scales by block, which have a row for 128 of the vocabulary: vLLM 0.26 expects one for each."""

from functools import wraps
from typing import Any


def load_block_scaled_heads() -> None:
    """Give `VocabParallelEmbedding` a weight loader that takes block scales too."""
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
