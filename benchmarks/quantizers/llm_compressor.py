"""More branches of SmolLM2 by llm-compressor: `python llm_compressor.py NAME REFERENCE TARGET`.

Blocks of 128 do not divide 576 rows and columns: the last block of `fp8-block` is a half one, as it is of inputs. The
observer `fouroversix` of llm-compressor 0.14.0.1 is another name of `nvfp4_expanded_mse`, so `nvfp4-fouroversix` takes
its search over ranges with the two candidates of Four Over Six (arXiv 2512.02010): the largest of 16 values becomes 6
or 4. `nvfp4-expanded-mse` searches 27 ranges instead of 111, which would take 15 minutes.
"""

import sys
from pathlib import Path
from typing import Any

import smollm2_llm_compressor  # type: ignore[import-not-found]  # of `tests/assets`
import torch

SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8-block": ("FP8_BLOCK", {}),
    "mxfp4": ("MXFP4", {}),
    "nvfp4-fouroversix": (
        "NVFP4",
        {"observer": "memoryless_mse", "observer_kwargs": {"expand": 1.5, "grid": 3, "maxshrink": 0.7, "norm": 2}},
    ),
    "nvfp4-expanded-mse": ("NVFP4", {"observer": "nvfp4_expanded_mse", "observer_kwargs": {"grid": 50}}),
    "w4a16-awq": ("W4A16_ASYM", {"group_size": 64}),
    "w8a16": ("W8A16", {"group_size": 64}),
}
"""By branch: a preset of compressed-tensors, and what differs from it in the weights."""


def recipe(name: str) -> Any:
    """The modifiers of a branch; the head is tied to the embeddings and stays as it is."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier

    preset, changes = SCHEMES[name]
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.weights = type(scheme.weights)(**(scheme.weights.model_dump() | changes))
    quantize = QuantizationModifier(config_groups={"group_0": scheme}, ignore=["lm_head"])
    if name != "w4a16-awq":
        return quantize
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]  # called without an accelerator too
    return [AWQModifier(), quantize]


if __name__ == "__main__":
    torch.set_num_threads(1)
    smollm2_llm_compressor.recipe = recipe
    smollm2_llm_compressor.make(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
