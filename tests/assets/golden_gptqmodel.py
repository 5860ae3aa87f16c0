"""Golden checkpoints in both GPTQ serializations, packed and decoded by GPTQModel 7.3.4's own `TorchLinear`.

Only its packer runs on two cores (its quantizer wants more), so weights are rounded to nearest, in groups whose columns
are drawn at random, which is what an activation order is to the format. Zero-points are asymmetric. Its decoder
multiplies in float16; with the stored scales widened first it gives the exact products, and `make_gptq` checks that
they round to what it gives by itself.
"""

import json
from pathlib import Path

import torch
from golden_base import base_model, save_decoded
from torch import Tensor, nn

BITS, GROUP = 4, 16
SIZES = {"vocab_size": 40, "hidden_size": 32, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
"""The packer takes multiples of 32."""


def make_gptq(name: str, target: Path) -> None:
    """`gptq-v1` or `gptq-v2`: the same codes."""
    from safetensors.torch import load_file, save_file

    base_model(**SIZES).save_pretrained(target)
    stored, decoded = {}, {}
    for key, weight in load_file(target / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if module.endswith("_proj"):
            parts, decoded[key] = _pack(weight, version=int(name[-1]))
            stored |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
        else:
            stored[key] = weight
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    layout = "gptq" if name == "gptq-v1" else "gptq_v2"
    settings = {"quant_method": "gptq", "bits": BITS, "group_size": GROUP, "desc_act": True, "sym": False}
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = settings | {"checkpoint_format": layout, "pack_dtype": "int32"}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_decoded(target, decoded)


def _pack(weight: Tensor, version: int) -> tuple[dict[str, Tensor], Tensor]:
    """(stored parts, decoded weight [out, in] in BF16)."""
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization import QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    out, columns = weight.shape
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(out * columns))
    g_idx = torch.empty(columns, dtype=torch.int32)
    g_idx[order] = torch.arange(columns, dtype=torch.int32) // GROUP
    grouped = weight.float()[:, order].reshape(out, -1, GROUP)
    least, greatest = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scales = ((greatest - least) / (2**BITS - 1)).half().float()
    zeros = (-least / scales).round()
    linear = nn.Linear(columns, out, bias=False)
    linear.weight.data = weight.float()
    packed = TorchLinear(BITS, GROUP, sym=False, desc_act=True, in_features=columns, out_features=out)
    packed.pack(linear, scales, zeros, g_idx)
    packed.eval().post_init()
    by_itself = packed.dequantize_weight().T
    packed.scales, in_half = packed.scales.float(), packed.scales
    packed.clear_weight_cache()
    exact = packed.dequantize_weight().T
    packed.scales = in_half
    if exact.dtype != torch.float32 or not torch.equal(exact.half(), by_itself):
        raise SystemExit("the packer's decoder does not agree with itself")
    if version == 1:
        convert_gptq_v2_to_v1_format_module(packed, QuantizeConfig(bits=BITS, group_size=GROUP, sym=False))
    parts = {part: getattr(packed, part).clone() for part in ("qweight", "qzeros", "scales", "g_idx")}
    return parts, exact.bfloat16()
