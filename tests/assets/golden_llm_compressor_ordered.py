"""A golden checkpoint with activation-ordered groups: llm-compressor 0.8.1, compressed-tensors 0.12.2.

Later releases no longer write `actorder="group"`. transformers 4.57.1, which these run with, knows the judged layout as
`qwen3_next` only: its full-attention layer has the same modules under the same names, so `config.json` is written with
the names that `qwen3_5_moe` has for the architecture, and with nothing else changed.
"""

import json
from pathlib import Path
from typing import Any

from golden_base import SMALL, TOKENIZER, calibration, randomized, save_decoded
from golden_llm_compressor import EVERY_LINEAR


def next_model(scratch: Path) -> Any:
    """`base_model` in the words of `qwen3_next`, saved and loaded."""
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, **SMALL}
    sizes |= {"num_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 64, "pad_token_id": 0}
    sizes |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    config = Qwen3NextConfig(layer_types=["full_attention"], rope_theta=10000.0, partial_rotary_factor=0.25, **sizes)
    randomized(lambda: Qwen3NextForCausalLM(config)).save_pretrained(scratch / "base")
    return Qwen3NextForCausalLM.from_pretrained(scratch / "base", dtype="bfloat16").eval()


def make_ordered(name: str, target: Path) -> None:
    """Quantize with GPTQ in activation order and save; decode with compressed-tensors' `ModelCompressor`."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import PreTrainedTokenizerFast

    scheme = preset_name_to_scheme("W4A16", [EVERY_LINEAR])
    ordered = {"group_size": 16, "actorder": "group"}
    scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | ordered))
    model = next_model(target.parent)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration(SMALL["vocab_size"])]
    oneshot(
        model=model,
        tokenizer=PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER / "tokenizer.json")),
        dataset=Dataset.from_list(rows),
        recipe=GPTQModifier(config_groups={"group_0": scheme}),
        num_calibration_samples=len(rows),
        max_seq_length=64,
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(target, save_compressed=True)
    loaded = next_model(target.parent)
    ModelCompressor.from_pretrained(str(target)).decompress(str(target), loaded)
    quantized = [name for name, module in model.named_modules() if getattr(module, "quantization_scheme", None)]
    save_decoded(target, {f"{name}.weight": loaded.get_submodule(name).weight.data for name in quantized})
    _name_the_architecture(target / "config.json")


def _name_the_architecture(file: Path) -> None:
    config = json.loads(file.read_text())
    config |= {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
    file.write_text(json.dumps(config, indent=2) + "\n")
