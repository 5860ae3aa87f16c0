"""Golden checkpoints of auto-round 0.16.1 (transformers 5.23.0): its own packings, GPTQ's, and AutoAWQ's."""

import shutil
from pathlib import Path
from typing import Any

import torch
from golden_base import THIRTY_TWO, TOKENIZER, calibration, from_folder, save_decoded

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "autoround-gptq": ("auto_gptq", {"sym": True}),
    "autoround-awq": ("auto_awq", {"sym": False}),
    "autoround-sym": ("auto_round", {"sym": True}),
    "autoround-asym": ("auto_round", {"sym": False}),
    "autoround-own-awq": ("auto_round:auto_awq", {"sym": False}),
}
"""The format to export to, and settings, by name."""
EIGHT_BITS = {"model.layers.0.self_attn.o_proj": {"bits": 8, "group_size": 32}}


def make_auto_round(name: str, target: Path) -> None:
    """Quantize and export with AutoRound; decode with the linear layers that it runs such weights with itself."""
    from auto_round import AutoRound
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    layout, settings = FORMATS[name]
    model = from_folder(target.parent, **THIRTY_TWO)
    own = layout == "auto_round"
    rounding = AutoRound(
        model,
        AutoTokenizer.from_pretrained(TOKENIZER),
        bits=4,
        group_size=16,
        iters=0,
        dataset=[torch.tensor([ids]) for ids in calibration(THIRTY_TWO["vocab_size"])],
        layer_config=dict(EIGHT_BITS) if own else {},
        device_map="cpu",
        disable_opt_rtn=True,
        **settings,
    )
    rounding.quantize_and_save(str(target.parent / "out"), format=layout)
    (written,) = (file.parent for file in (target.parent / "out").rglob("config.json"))
    shutil.copytree(written, target)
    stored = load_file(target / "model.safetensors")
    modules = sorted({key.removesuffix(".qweight") for key in stored if key.endswith(".qweight")})
    save_decoded(target, {f"{module}.weight": decoded(stored, module, name) for module in modules})


def decoded(stored: dict[str, torch.Tensor], module: str, name: str) -> torch.Tensor:
    """[out, in] by the producer's own code: in float16 for AutoAWQ's layout, else in float32."""
    from auto_round.export.export_to_awq.utils import dequantize_gemm

    qweight, qzeros, scales = (stored[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales"))
    if "awq" in name:
        return dequantize_gemm(qweight, qzeros, scales, 4, qweight.shape[0] // scales.shape[0]).T
    if name == "autoround-asym":
        from auto_round_extension.torch.qlinear_torch import QuantLinear
    else:
        from auto_round_extension.torch.qlinear_torch_zp import QuantLinear
    bits = 8 if module in EIGHT_BITS and name != "autoround-gptq" else 4
    columns = qweight.shape[0] * 32 // bits
    layer = QuantLinear(bits, columns // scales.shape[0], columns, qweight.shape[1], False)
    layer.qweight, layer.qzeros, layer.scales = qweight, qzeros, scales.float()
    return layer(torch.eye(columns)).T
