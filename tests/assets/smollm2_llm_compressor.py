"""Branches of SmolLM2 by llm-compressor: `python smollm2_llm_compressor.py NAME REFERENCE TARGET`.

Writes the folder TARGET and, for every quantized weight, the SHA-256 of what compressed-tensors' own
`decompress_module` makes of it in BF16.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from smollm2_decoded import CALIBRATION, write_decoded


def recipe(name: str) -> Any:
    """The modifier of a branch; the head is tied to the embeddings and stays as it is."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    preset = {
        "fp8-dynamic": "FP8_DYNAMIC",
        "fp8-static-kv": "FP8",
        "w8a8": "W8A8",
        "nvfp4": "NVFP4",
        "w4a16": "W4A16",
        "w4a16-gptq": "W4A16",
    }[name]
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if preset == "W4A16":  # its groups of 128 do not divide 576 columns
        scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | {"group_size": 64}))
    settings: dict[str, Any] = {"config_groups": {"group_0": scheme}, "ignore": ["lm_head"]}
    if name == "fp8-static-kv":
        settings["kv_cache_scheme"] = {
            "num_bits": 8,
            "type": "float",
            "strategy": "tensor",
            "dynamic": False,
            "symmetric": True,
        }
    return GPTQModifier(**settings) if name == "w4a16-gptq" else QuantizationModifier(**settings)


def make(name: str, reference: str, target: Path) -> None:
    """Quantize and save, then decode the saved weights."""
    from compressed_tensors.compressors import compress_module, decompress_module
    from datasets import Dataset
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(reference)
    ids = [tokenizer(text)["input_ids"] for text in CALIBRATION]
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_list([{"input_ids": each, "attention_mask": [1] * len(each)} for each in ids]),
        recipe=[recipe(name)],
        num_calibration_samples=len(ids),
        max_seq_length=96,
        shuffle_calibration_samples=False,
    )
    model.save_pretrained(target, save_compressed=True)
    tokenizer.save_pretrained(target)
    decoded = {}
    for module_name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and scheme.weights is not None:
            if str(getattr(module, "quantization_status", "")).lower().rpartition(".")[2] != "compressed":
                compress_module(module)
            decompress_module(module)
            decoded[f"{module_name}.weight"] = module.weight.data
    write_decoded(target, decoded)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
