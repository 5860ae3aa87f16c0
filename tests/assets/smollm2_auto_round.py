"""Branches of SmolLM2 by AutoRound: `python smollm2_auto_round.py NAME REFERENCE TARGET`.

It rounds to nearest (`iters=0`): tuning would take hours on two cores. Writes the folder TARGET and, for every
quantized weight, the SHA-256 of what AutoRound's own linear layers compute with, in BF16.
"""

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from smollm2_decoded import CALIBRATION, write_decoded

GROUP = 64
LAYOUTS = {
    "autoround-4-gptq": (4, True, "auto_gptq"),
    "autoround-4-awq": (4, False, "auto_awq"),
    "autoround-3": (3, True, "auto_round"),
    "autoround-2": (2, True, "auto_round"),
}
"""By branch: bits, whether zero-points are fixed, and the format to export to."""


def make(name: str, reference: str, target: Path) -> None:
    """Quantize and export, then decode the exported weights."""
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    bits, symmetric, layout = LAYOUTS[name]
    rounding = AutoRound(
        AutoModelForCausalLM.from_pretrained(reference, dtype=torch.bfloat16),
        AutoTokenizer.from_pretrained(reference),
        bits=bits,
        group_size=GROUP,
        sym=symmetric,
        iters=0,
        dataset=CALIBRATION,
        seqlen=32,
        nsamples=len(CALIBRATION),
        batch_size=2,
        device_map="cpu",
        disable_opt_rtn=True,
    )
    place = target.parent / "exported"
    rounding.quantize_and_save(str(place), format=layout)
    (written,) = (file.parent for file in place.rglob("config.json"))
    shutil.move(written, target)
    stored = load_file(target / "model.safetensors")
    modules = sorted(key.removesuffix(".qweight") for key in stored if key.endswith(".qweight"))
    write_decoded(target, {f"{module}.weight": decoded(stored, module, bits, layout) for module in modules})


@torch.no_grad()
def decoded(stored: dict[str, torch.Tensor], module: str, bits: int, layout: str) -> torch.Tensor:
    """The weight [out, in] by AutoRound's own code: in float16 for AutoAWQ's layout, else in float32."""
    from auto_round.export.export_to_awq.utils import dequantize_gemm

    qweight, qzeros, scales = (stored[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales"))
    if layout == "auto_awq":
        return dequantize_gemm(qweight, qzeros, scales, bits, GROUP).T
    from auto_round_extension.torch.qlinear_torch_zp import QuantLinear

    columns = scales.shape[0] * GROUP
    layer = QuantLinear(bits, GROUP, columns, qweight.shape[1], False)
    layer.qweight, layer.qzeros, layer.scales = qweight, qzeros, scales.float()
    return layer(torch.eye(columns)).T


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
