"""Branches of SmolLM2 by Model Optimizer, in its default recipes: `python model_optimizer.py NAME REFERENCE TARGET`."""

import sys
from pathlib import Path

import torch
from smollm2_decoded import CALIBRATION  # type: ignore[import-not-found]  # of `tests/assets`

RECIPES = {"modelopt-fp8": "FP8_DEFAULT_CFG", "modelopt-nvfp4": "NVFP4_DEFAULT_CFG"}


@torch.no_grad()
def make(name: str, reference: str, target: Path) -> None:
    """Quantize and export."""
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(reference)

    def calibrate(quantized: torch.nn.Module) -> None:
        for text in CALIBRATION:
            quantized(**tokenizer(text, return_tensors="pt"))

    model = mtq.quantize(model, getattr(mtq, RECIPES[name]), calibrate)
    export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
