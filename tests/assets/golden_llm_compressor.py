"""Golden checkpoints of llm-compressor 0.14.0.1 (compressed-tensors 0.19.0, transformers 5.17.0).

The one with activation-ordered groups is of llm-compressor 0.8.1, compressed-tensors 0.12.2: later releases no longer
write `actorder="group"`. transformers 4.57.1, which these run with, knows the judged layout as `qwen3_next` only: its
full-attention layer has the same modules under the same names, so `config.json` is written with the names that
`qwen3_5_moe` has for the architecture, and with nothing else changed.
"""

import json
from pathlib import Path
from typing import Any

from golden_base import MICROSCALED, SMALL, TOKENIZER, calibration, from_folder, randomized, save_decoded

EVERY_LINEAR = r"re:.*(self_attn\.[qkvo]_proj|experts\.\d+\.\w+_proj|shared_expert\.\w+_proj)$"

EMBEDDINGS_COUNT = {"head_dim": 16, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
"""Sizes of a model of which nothing but its embeddings is quantized."""


def compressed_recipes() -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """Config groups and KV-cache scheme by name."""
    from compressed_tensors.quantization import preset_name_to_scheme

    def group(preset: str, targets: str = EVERY_LINEAR, **weights: Any) -> Any:
        scheme = preset_name_to_scheme(preset, [targets])
        if weights:
            scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | weights))
        return scheme

    head = r"re:.*lm_head$"
    channel = {"strategy": "channel", "group_size": None}
    embeddings = preset_name_to_scheme("FP8_BLOCK", [r"re:.*embed_tokens$"])
    embeddings.input_activations = None  # they are looked up by token id
    kv = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    return {
        "ct-nvfp4": ({"group_0": group("NVFP4")}, None),
        "ct-fp8-block": ({"group_0": group("FP8_BLOCK"), "group_1": group("FP8_BLOCK", head)}, None),
        "ct-fp8-tensor-static": ({"group_0": group("FP8")}, kv),
        "ct-fp8-channel-dynamic": ({"group_0": group("FP8_DYNAMIC"), "group_1": group("FP8_DYNAMIC", head)}, None),
        "ct-w8a8-int8": ({"group_0": group("W8A8")}, None),
        "ct-w4a16-group": ({"group_0": group("W4A16", group_size=16)}, None),
        "ct-w4a16-asym": ({"group_0": group("W4A16_ASYM", group_size=16)}, None),
        "ct-w8a16-channel": ({"group_0": group("W8A16", **channel)}, None),
        "ct-mxfp4": ({"group_0": group("MXFP4")}, None),
        "ct-mxfp8": ({"group_0": group("MXFP8")}, None),
        "ct-awq": ({"group_0": group("W4A16_ASYM", group_size=32)}, None),
        "ct-fp8-embeddings": ({"group_0": embeddings}, None),
        "ct-mixed": (
            {
                "group_0": group("NVFP4", r"re:.*experts\.\d+\.\w+_proj$"),
                "group_1": group("FP8_BLOCK", head),
                "group_2": group("W8A16", r"re:.*self_attn\.[qkvo]_proj$", **channel),
                "group_3": group("FP8_DYNAMIC", r"re:.*shared_expert\.\w+_proj$"),
            },
            None,
        ),
    }


def smoothing(name: str) -> list[Any]:
    """AWQ's: columns of the projections are multiplied by factors that the norms before them are divided by."""
    import torch
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.awq.mappings import AWQMapping

    if name != "ct-awq":
        return []
    torch.Tensor.pin_memory = lambda self, *_: self  # which it calls without an accelerator too
    attention = [rf"re:.*self_attn\.{each}_proj$" for each in "qkv"]
    experts = [
        rf"re:.*{place}\.{each}_proj$" for place in (r"experts\.\d+", "shared_expert") for each in ("gate", "up")
    ]
    gates = [r"re:.*mlp\.gate$", r"re:.*shared_expert_gate$"]
    return [
        AWQModifier(
            mappings=[
                AWQMapping(r"re:.*input_layernorm$", attention),
                AWQMapping(r"re:.*post_attention_layernorm$", [*experts, *gates]),
            ]
        )
    ]


def calibrated(model: Any, tokenizer: Any, vocabulary: int, **settings: Any) -> None:
    """Run a recipe over the model, calibrated on random tokens."""
    from datasets import Dataset
    from llmcompressor import oneshot

    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration(vocabulary)]
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_list(rows),
        num_calibration_samples=len(rows),
        max_seq_length=64,
        shuffle_calibration_samples=False,
        **settings,
    )


def make_compressed(name: str, target: Path) -> None:
    """Quantize and save with llm-compressor; decode with compressed-tensors' `decompress_module`."""
    from compressed_tensors.compressors import compress_module, decompress_module
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoTokenizer

    groups, kv = compressed_recipes()[name]
    sizes = (
        EMBEDDINGS_COUNT if name == "ct-fp8-embeddings" else MICROSCALED if "mxfp" in name or name == "ct-awq" else {}
    )
    model = from_folder(target.parent, **sizes)
    linearize_moe(model)
    recipe = [*smoothing(name), QuantizationModifier(config_groups=groups, kv_cache_scheme=kv)]
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    calibrated(model, tokenizer, sizes.get("vocab_size", 136), recipe=recipe, moe_calibrate_all_experts=True)
    model.save_pretrained(target, save_compressed=True)
    decoded = {}
    for module_name, module in model.named_modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and scheme.weights is not None:
            if str(getattr(module, "quantization_status", "")).lower().rpartition(".")[2] != "compressed":
                compress_module(module)
            decompress_module(module)
            decoded[f"{module_name}.weight"] = module.weight.data
    save_decoded(target, decoded)


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
    from llmcompressor.modifiers.quantization import GPTQModifier
    from transformers import PreTrainedTokenizerFast

    scheme = preset_name_to_scheme("W4A16", [EVERY_LINEAR])
    ordered = {"group_size": 16, "actorder": "group"}
    scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | ordered))
    model = next_model(target.parent)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER / "tokenizer.json"))
    calibrated(model, tokenizer, SMALL["vocab_size"], recipe=GPTQModifier(config_groups={"group_0": scheme}))
    model.save_pretrained(target, save_compressed=True)
    loaded = next_model(target.parent)
    ModelCompressor.from_pretrained(str(target)).decompress(str(target), loaded)
    quantized = [name for name, module in model.named_modules() if getattr(module, "quantization_scheme", None)]
    save_decoded(target, {f"{name}.weight": loaded.get_submodule(name).weight.data for name in quantized})
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
