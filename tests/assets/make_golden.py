"""Write the golden checkpoints: `python tests/assets/make_golden.py llm-compressor|modelopt NAME`, then `manifest`.

Each is a tiny random `qwen3_5_moe` quantized and saved by its real producer, with what the producer's own code decodes
its weights to. Environments as in `app/sandbox/producers`: llm-compressor 0.14.0.1 (compressed-tensors 0.19.0) and
nvidia-modelopt 0.47.0, both with transformers 5.17.0. `golden/` holds

- `NAME/`: `config.json`, `model.safetensors` and, from Model Optimizer, `hf_quant_config.json`, as the producer wrote
  them;
- `decoded/NAME.safetensors`: every quantized weight after compressed-tensors' `decompress_module` (in its dtype)
  or after Model Optimizer's `QTensor.dequantize` (in float32).

llm-compressor 0.14 no longer writes activation-ordered groups (`actorder="group"`).

`manifest` writes `golden/MANIFEST.json`: producer, version and the SHA-256 of every file.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

GOLDEN = Path(__file__).parent / "golden"
TOKENIZER = Path(__file__).parents[2] / "data" / "sandbox" / "bf16"
HIDDEN, VOCABULARY, EXPERTS, INTERMEDIATE = 64, 136, 2, 16
KEPT = ("config.json", "hf_quant_config.json", "model.safetensors")
EVERY_LINEAR = r"re:.*(self_attn\.[qkvo]_proj|experts\.\d+\.\w+_proj|shared_expert\.\w+_proj)$"


def base_model() -> Any:
    """One full-attention layer with two experts, in BF16; the same for every producer."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    config = Qwen3_5MoeTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=EXPERTS,
        num_experts_per_tok=1,
        moe_intermediate_size=INTERMEDIATE,
        shared_expert_intermediate_size=INTERMEDIATE,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    torch.manual_seed(11)
    model = Qwen3_5MoeForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    return model.eval()


def from_folder(scratch: Path) -> Any:
    """The base model, saved and loaded: producers copy files from where their model came from."""
    from transformers import AutoModelForCausalLM

    base_model().save_pretrained(scratch / "base")
    return AutoModelForCausalLM.from_pretrained(scratch / "base", dtype=torch.bfloat16).eval()


def calibration() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (24,), generator=generator).tolist() for _ in range(8)]


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


def make_compressed(name: str, target: Path) -> None:
    """Quantize and save with llm-compressor; decode with compressed-tensors' `decompress_module`."""
    from compressed_tensors.compressors import compress_module, decompress_module
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modeling.moe.linearize import linearize_moe
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from transformers import AutoTokenizer

    groups, kv = compressed_recipes()[name]
    model = from_folder(target.parent)
    linearize_moe(model)
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in calibration()]
    oneshot(
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(TOKENIZER),
        dataset=Dataset.from_list(rows),
        recipe=QuantizationModifier(config_groups=groups, kv_cache_scheme=kv),
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


def modelopt_recipe(name: str) -> Any:
    import copy

    import modelopt.torch.quantization as mtq

    if name == "modelopt-nvfp4":
        return mtq.NVFP4_EXPERTS_ONLY_CFG
    config = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    if name == "modelopt-fp8":
        config["quant_cfg"] = [*config["quant_cfg"], *mtq.FP8_KV_CFG["quant_cfg"]]
        return config
    if name == "modelopt-mixed":
        experts = [entry for entry in mtq.NVFP4_EXPERTS_ONLY_CFG["quant_cfg"] if "expert" in str(entry)]
        config["quant_cfg"] = [*config["quant_cfg"], *experts]
        return config
    raise SystemExit(f"unknown name {name}")


def make_modelopt(name: str, target: Path) -> None:
    """Quantize and export with Model Optimizer; decode with its `NVFP4QTensor` and `FP8QTensor`."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
    from safetensors.torch import load_file

    model = from_folder(target.parent)
    sequences = calibration()

    def calibrate(quantized: torch.nn.Module) -> None:
        with torch.no_grad():
            for sequence in sequences:
                quantized(input_ids=torch.tensor([sequence]))

    model = mtq.quantize(model, modelopt_recipe(name), calibrate)
    with torch.no_grad():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=target)
    stored, decoded = load_file(target / "model.safetensors"), {}
    for key, weight in stored.items():
        module = key.removesuffix(".weight")
        if not key.endswith(".weight") or f"{module}.weight_scale" not in stored:
            continue
        scale = stored[f"{module}.weight_scale"]
        if weight.dtype == torch.uint8:
            tensor = NVFP4QTensor((weight.shape[0], weight.shape[1] * 2), torch.float32, weight)
            double = stored[f"{module}.weight_scale_2"]
            decoded[key] = tensor.dequantize(torch.float32, scale=scale, double_scale=double, block_sizes={-1: 16})
        else:
            decoded[key] = FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=scale)
    if not decoded:
        raise SystemExit("Model Optimizer exported no quantized tensor")
    save_decoded(target, decoded)


def save_decoded(target: Path, decoded: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import save_file

    file = target.parent / "decoded.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in decoded.items()}, file)


def make(producer: str, name: str) -> None:
    """Write `golden/NAME` anew."""
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / name
        (make_compressed if producer == "llm-compressor" else make_modelopt)(name, written)
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        (GOLDEN / name).mkdir(parents=True)
        for file in KEPT:
            if (written / file).is_file():
                shutil.copyfile(written / file, GOLDEN / name / file)
        (GOLDEN / "decoded").mkdir(exist_ok=True)
        shutil.copyfile(written.parent / "decoded.safetensors", GOLDEN / "decoded" / f"{name}.safetensors")


PRODUCERS = {"ct": "llm-compressor 0.14.0.1, compressed-tensors 0.19.0", "modelopt": "nvidia-modelopt 0.47.0"}


def write_manifest() -> None:
    """Hash what lies in `golden/`."""
    entries = {}
    for decoded in sorted((GOLDEN / "decoded").iterdir()):
        name = decoded.stem
        files = [*sorted((GOLDEN / name).iterdir()), decoded]
        hashes = {str(file.relative_to(GOLDEN)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        entries[name] = {"producer": PRODUCERS[name.partition("-")[0]], "files": hashes}
    (GOLDEN / "MANIFEST.json").write_text(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "manifest":
        write_manifest()
    else:
        make(sys.argv[1], sys.argv[2])
