"""Golden checkpoints of nvidia-modelopt 0.47.0 (transformers 5.17.0)."""

from pathlib import Path
from typing import Any

import torch
from golden_base import MICROSCALED, SMALL, calibration, from_folder, save_decoded

DEFAULTS = {
    "modelopt-nvfp4": "NVFP4_EXPERTS_ONLY_CFG",
    "modelopt-nvfp4-default": "NVFP4_DEFAULT_CFG",
    "modelopt-nvfp4-w4a16": "W4A16_NVFP4_CFG",
    "modelopt-fp8-default": "FP8_DEFAULT_CFG",
    "modelopt-fp8-block": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "modelopt-fp8-token": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "modelopt-mxfp4": "MXFP4_DEFAULT_CFG",
    "modelopt-mxfp8": "MXFP8_DEFAULT_CFG",
}
"""Model Optimizer's own configuration by the name of the checkpoint."""
FIRST = ("modelopt-nvfp4", "modelopt-fp8", "modelopt-mixed")
"""Written before the others, of a larger vocabulary."""


def modelopt_recipe(name: str) -> Any:
    import copy

    import modelopt.torch.quantization as mtq

    if name in DEFAULTS:
        return getattr(mtq, DEFAULTS[name])
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
    """Quantize and export with Model Optimizer; decode with its own tensor types."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
    from safetensors.torch import load_file

    sizes = {} if name in FIRST else MICROSCALED if name.partition("mxfp")[1] else SMALL
    model = from_folder(target.parent, **sizes)
    sequences = calibration() if name in FIRST else calibration(SMALL["vocab_size"])

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
        if scale.dtype == torch.uint8:
            kind, width = (MXFP4QTensor, 2) if weight.dtype == torch.uint8 else (MXFP8QTensor, 1)
            tensor = kind((weight.shape[0], weight.shape[1] * width), torch.float32, weight)
            decoded[key] = tensor.dequantize(torch.bfloat16, scale=scale, block_sizes={-1: 32})  # exact
        elif weight.dtype == torch.uint8:
            tensor = NVFP4QTensor((weight.shape[0], weight.shape[1] * 2), torch.float32, weight)
            double = stored[f"{module}.weight_scale_2"]
            decoded[key] = tensor.dequantize(torch.float32, scale=scale, double_scale=double, block_sizes={-1: 16})
        elif name == "modelopt-fp8-block":
            blocks = {"scale": scale.reshape(1, 1), "block_sizes": {-1: 128, -2: 128}}  # no weight here has two blocks
            decoded[key] = FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, **blocks)
        else:
            per_row = scale.unsqueeze(-1) if scale.dim() else scale
            decoded[key] = FP8QTensor(weight.shape, torch.float32, weight).dequantize(torch.float32, scale=per_row)
    save_decoded(target, decoded)
