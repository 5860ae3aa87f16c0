"""Golden checkpoints of llm-compressor 0.14.0.1 (compressed-tensors 0.19.0, transformers 5.17.0)."""

from pathlib import Path
from typing import Any

from golden_base import MICROSCALED, TOKENIZER, calibration, from_folder, save_decoded

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


def make_compressed(name: str, target: Path) -> None:
    """Quantize and save with llm-compressor; decode with compressed-tensors' `decompress_module`."""
    from compressed_tensors.compressors import compress_module, decompress_module
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoTokenizer

    groups, kv = compressed_recipes()[name]
    sizes = (
        EMBEDDINGS_COUNT if name == "ct-fp8-embeddings" else MICROSCALED if "mxfp" in name or name == "ct-awq" else {}
    )
    model = from_folder(target.parent, **sizes)
    linearize_moe(model)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration(sizes.get("vocab_size", 136))]
    oneshot(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(TOKENIZER),
        dataset=Dataset.from_list(rows),
        recipe=[*smoothing(name), QuantizationModifier(config_groups=groups, kv_cache_scheme=kv)],
        num_calibration_samples=len(rows),
        max_seq_length=64,
        shuffle_calibration_samples=False,
        moe_calibrate_all_experts=True,
    )
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
