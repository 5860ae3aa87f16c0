"""Golden checkpoints of transformers 5.17.0's own fine-grained FP8 quantizer, which wants a GPU.

`tf-fp8-fused` is saved as the model holds its experts (`save_original_format=False`), `tf-fp8-per-expert` as
`save_pretrained` does it by default. Decoded by its `Fp8Dequantize`, which transformers itself applies to the
per-expert file only: it loads the fused one without a GPU as if there were no scales.
"""

from pathlib import Path

import torch
from golden_base import SMALL, base_model, save_decoded

LEFT_OUT = ["lm_head", "shared_expert_gate"]


def make_fp8(name: str, target: Path) -> None:
    """Quantize on the way in and save."""
    from transformers import AutoModelForCausalLM, FineGrainedFP8Config

    base = target.parent / "base"
    base_model(hidden_size=32, moe_intermediate_size=32, **SMALL).save_pretrained(base)
    config = FineGrainedFP8Config(weight_block_size=(16, 16), modules_to_not_convert=LEFT_OUT)
    model = AutoModelForCausalLM.from_pretrained(
        base, dtype=torch.bfloat16, quantization_config=config, device_map="cuda"
    )
    model.save_pretrained(target, save_original_format=name == "tf-fp8-per-expert")
    save_decoded(target, decoded_fp8(target))


def decoded_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Every quantized weight of a saved folder in BF16, by the names of the per-expert layout; needs no GPU."""
    from safetensors.torch import load_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    stored, decoded = load_file(folder / "model.safetensors"), {}
    for key, scale in stored.items():
        if key.endswith("_scale_inv"):
            weight = stored[key.removesuffix("_scale_inv")]
            exact = Fp8Dequantize(None)._dequantize_one(weight, scale, torch.float32)
            decoded |= _by_expert(key.removesuffix("_scale_inv"), exact.bfloat16())
    return decoded


def _by_expert(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    if weight.dim() == 2:
        return {name: weight}
    experts, _, which = name.rpartition(".")
    halves = {"gate_proj": 0, "up_proj": 1} if which == "gate_up_proj" else {"down_proj": 0}
    return {
        f"{experts}.{expert}.{projection}.weight": rows.chunk(len(halves))[half]
        for expert, rows in enumerate(weight)
        for projection, half in halves.items()
    }
