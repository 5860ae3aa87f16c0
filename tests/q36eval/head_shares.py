"""Of a head in FP8 with scales by block each device gets the scales of its own rows: run by vLLM's own Python."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from q36eval_vllm.patches import load_block_scaled_heads
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding, pad_vocab_size
from vllm.model_executor.parameter import BlockQuantScaleParameter

BLOCK, VOCABULARY = 128, 248_320


def share(vocabulary: int, rank: int, devices: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a device loads, and what is stored."""
    padded = pad_vocab_size(vocabulary, 64)
    indices = VocabParallelEmbedding._get_indices(padded, padded, vocabulary, vocabulary, rank, devices)
    layer = SimpleNamespace(weight_block_size=[BLOCK, BLOCK], shard_indices=indices, org_vocab_size=vocabulary)
    scales = torch.arange(-(-vocabulary // BLOCK) * 2.0).reshape(-1, 2) + 5
    rows = -(-(padded // devices) // BLOCK)
    parameter = BlockQuantScaleParameter(
        data=torch.zeros(rows, 2), input_dim=1, output_dim=0, weight_loader=lambda *given: None
    )
    VocabParallelEmbedding.weight_loader(layer, parameter, scales)
    return parameter.data, scales


def main() -> None:
    """Raises where a share is not its own rows, or one within a block is not refused."""
    load_block_scaled_heads()
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{Path(folder) / 'group'}", 0, "gloo")
        initialize_model_parallel(1)
        for devices in (1, 2, 4):
            loaded = [share(VOCABULARY, rank, devices) for rank in range(devices)]
            assert torch.equal(torch.cat([each for each, _ in loaded]), loaded[0][1]), devices
        assert torch.equal(*share(1000, 0, 1)), "the last block is not whole"
        try:
            share(VOCABULARY, 1, 8)
        except ValueError as error:
            print(error)
            return
    sys.exit("a share within a block was loaded")


if __name__ == "__main__":
    main()
