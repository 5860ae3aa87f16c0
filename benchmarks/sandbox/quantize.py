"""Write a branch of the sandbox with the tool that published branches are made with.

`python -m benchmarks.sandbox.quantize BRANCH BF16 CALIBRATION OUT`. Run it by hand, each tool in an environment of its
own:

    python3 -m venv producers
    producers/bin/pip install torch==2.13.0
    producers/bin/pip install llmcompressor==0.14.0.1     # brings transformers 5.17.0, compressed-tensors 0.19.0

    python3 -m venv modelopt
    modelopt/bin/pip install torch==2.13.0 nvidia-modelopt==0.47.0 transformers==5.17.0 requests

BRANCH is one of

- `fp8-head`: NVFP4 (W4A4, groups of 16) on routed experts, shared expert and self-attention, FP8_BLOCK [128, 128]
  on `lm_head`. `main` and `fp8-head-embed` are derived from it (`derive.py`), so all three share their inner weights.
- `w4a16`: self-attention W8A16, routed experts W4A16 in groups of 32, super-experts W8A16; first two and last layers
  in BF16. GPTQ without activation reordering.
- `gptq-experts`: GPTQ int4, groups of 128, symmetric, on routed experts; `derive.py` turns it into GPTQ serialization.
- `nvfp4-modelopt`, by NVIDIA Model Optimizer: NVFP4 on routed experts only, exported with `hf_quant_config.json`;
  `architectures` stay as Model Optimizer writes them.
- `nvfp4-mixed`, by NVIDIA Model Optimizer's own recipe for this family (`MIXED_RECIPE`), which
  `nvidia/Qwen3.6-35B-A3B-NVFP4` follows: NVFP4 weight-only on routed experts, shared expert and head, FP8 on attention
  and linear attention, an FP8 KV cache. The others are written by llm-compressor.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
CALIBRATION_LENGTH = 512
CALIBRATION_SAMPLES = 256
MIXED_RECIPE = "huggingface/qwen3_5_moe/ptq/w4a16_nvfp4-fp8_attn-kv_fp8_cast"
"""Of the recipes that Model Optimizer 0.47 ships: NVFP4 weights of experts and head, FP8 attention and KV cache."""


def calibration_sequences(tokenizer: Any, calibration: Path) -> list[list[int]]:
    """Token ids of the first `CALIBRATION_SAMPLES` texts of a JSON Lines file with a `text` field, cut to length."""
    with calibration.open(encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines if line.strip()]
    sequences = [tokenizer(text)["input_ids"][:CALIBRATION_LENGTH] for text in texts[:CALIBRATION_SAMPLES]]
    return [sequence for sequence in sequences if len(sequence) > 1]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Put the reference's tokenizer, template and generation settings back, byte for byte.

    Producers re-serialize them; a branch differs from its reference in weights, not in what text means.
    """
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


EXPERT = r"mlp\.experts\.\d+\.(gate|up|down)_proj$"
SHARED = r"mlp\.shared_expert\.(gate|up|down)_proj$"
ATTENTION = r"self_attn\.(q|k|v|o)_proj$"
SUPER_EXPERT_SHARE = 0.0005
"""The card's top 0.05 % of expert slots; at least one is always protected."""


def integer_weights(bits: int, group_size: int | None) -> dict[str, Any]:
    """Symmetric integer weights, per group or per output channel."""
    strategy = "channel" if group_size is None else "group"
    weights = {"num_bits": bits, "type": "int", "strategy": strategy, "group_size": group_size, "symmetric": True}
    return weights


def nvfp4_recipe() -> Any:
    """NVFP4 inner weights and activations with an FP8 head, calibrated in one pass."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.modifiers.quantization import QuantizationModifier

    inner = preset_name_to_scheme("NVFP4", [f"re:.*{EXPERT}", f"re:.*{SHARED}", f"re:.*{ATTENTION}"])
    head = preset_name_to_scheme("FP8_BLOCK", ["re:.*lm_head$"])
    return QuantizationModifier(config_groups={"group_0": inner, "group_1": head})


def w4a16_recipe(layers: int, super_experts: list[tuple[int, int]]) -> Any:
    """The hybrid recipe; `super_experts` are (layer, expert) pairs."""
    from llmcompressor.modifiers.gptq import GPTQModifier

    middle = "|".join(str(layer) for layer in range(2, layers - 1))
    protected = [rf"re:.*layers\.{layer}\.mlp\.experts\.{expert}\.\w+_proj$" for layer, expert in super_experts]
    plain = "".join(rf"(?!.*layers\.{layer}\.mlp\.experts\.{expert}\.)" for layer, expert in super_experts)
    eight = {"targets": [rf"re:.*layers\.({middle})\.{ATTENTION}", *protected], "weights": integer_weights(8, None)}
    four = {"targets": [rf"re:{plain}.*layers\.({middle})\.{EXPERT}"], "weights": integer_weights(4, 32)}
    return GPTQModifier(config_groups={"group_0": eight, "group_1": four}, ignore=["lm_head"], actorder=None)


def gptq_recipe() -> Any:
    """Int4 in groups of 128 on every routed expert."""
    from llmcompressor.modifiers.gptq import GPTQModifier

    group = {"targets": [f"re:.*{EXPERT}"], "weights": integer_weights(4, 128)}
    return GPTQModifier(config_groups={"group_0": group}, ignore=["lm_head"], actorder=None)


def find_super_experts(model: Any, sequences: list[list[int]]) -> list[tuple[int, int]]:
    """(layer, expert) pairs, outside the boundary layers, with the largest mean L2 norm of `down_proj` outputs.

    The mean is over the tokens routed to the expert, in one pass over the calibration sequences.
    """
    import torch

    totals: dict[tuple[int, int], tuple[float, int]] = {}

    def watch(key: tuple[int, int]) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            norm, count = totals.get(key, (0.0, 0))
            norms = output.detach().float().norm(dim=-1)
            totals[key] = (norm + float(norms.sum()), count + norms.numel())

        return hook

    last = model.config.num_hidden_layers - 1
    handles = []
    for name, module in model.named_modules():
        match = re.search(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.down_proj$", name)
        if match and 2 <= int(match[1]) < last:
            handles.append(module.register_forward_hook(watch((int(match[1]), int(match[2])))))
    with torch.no_grad():
        for sequence in sequences:
            model(input_ids=torch.tensor([sequence]))
    for handle in handles:
        handle.remove()
    means = {key: total / count for key, (total, count) in totals.items() if count}
    keep = max(1, round(SUPER_EXPERT_SHARE * len(means)))
    return sorted(sorted(means, key=lambda key: -means[key])[:keep])


def with_llm_compressor(branch: str, source: Path, calibration: Path, target: Path) -> None:
    """Quantize the BF16 folder `source` and write a complete Hugging Face folder."""
    import torch
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    linearize_moe(model)
    sequences = calibration_sequences(tokenizer, calibration)
    if branch == "fp8-head":
        recipe = nvfp4_recipe()
    elif branch == "w4a16":
        super_experts = find_super_experts(model, sequences)
        print(f"super-experts (layer, expert): {super_experts}")
        recipe = w4a16_recipe(model.config.num_hidden_layers, super_experts)
    elif branch == "gptq-experts":
        recipe = gptq_recipe()
    else:
        raise SystemExit(
            f"unknown branch {branch}: choose fp8-head, w4a16, gptq-experts, nvfp4-modelopt or nvfp4-mixed"
        )
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in sequences]
    oneshot(
        model=model,
        tokenizer=tokenizer,
        dataset=Dataset.from_list(rows),
        recipe=recipe,
        num_calibration_samples=len(rows),
        max_seq_length=max(map(len, sequences)),
        shuffle_calibration_samples=False,
        moe_calibrate_all_experts=True,
    )
    model.save_pretrained(target, save_compressed=True)
    copy_tokenizer(source, target)


def with_model_optimizer(branch: str, source: Path, calibration: Path, target: Path) -> None:
    """Quantize the BF16 folder `source` and write a complete Hugging Face folder.

    Raises:
        SystemExit: the export quantized nothing (an experts-only recipe that matches no module says it succeeded).
    """
    import modelopt.torch.quantization as mtq
    import torch
    from modelopt.recipe import load_recipe
    from modelopt.torch.export import export_hf_checkpoint
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    sequences = calibration_sequences(tokenizer, calibration)

    def calibrate(quantized: torch.nn.Module) -> None:
        with torch.no_grad():
            for sequence in sequences:
                quantized(input_ids=torch.tensor([sequence]))

    recipe = mtq.NVFP4_EXPERTS_ONLY_CFG
    if branch == "nvfp4-mixed":
        recipe = load_recipe(MIXED_RECIPE).quantize.model_dump()
    model = mtq.quantize(model, recipe, calibrate)
    with torch.no_grad():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=target)
    copy_tokenizer(source, target)
    with safe_open(target / "model.safetensors", framework="pt") as stored:
        quantized = sum(name.endswith("weight_scale_2") for name in stored.keys())  # noqa: SIM118 (not a dict)
    if quantized == 0:
        raise SystemExit("Model Optimizer exported no quantized tensor")
    print(f"{quantized} quantized tensors")


if __name__ == "__main__":
    named, *folders = sys.argv[1:]
    bf16, texts, out = map(Path, folders)
    if named in ("nvfp4-modelopt", "nvfp4-mixed"):
        with_model_optimizer(named, bf16, texts, out)
    else:
        with_llm_compressor(named, bf16, texts, out)
