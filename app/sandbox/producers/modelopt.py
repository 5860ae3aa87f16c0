"""Write `nvfp4-modelopt` with NVIDIA Model Optimizer.

`python -m q36eval.app.sandbox.producers.modelopt BF16 CALIBRATION OUT`.

Run it in an environment of its own:

    python3 -m venv modelopt
    modelopt/bin/pip install torch==2.13.0 nvidia-modelopt==0.47.0 transformers==5.17.0 requests

NVFP4 on routed experts only, exported with `hf_quant_config.json`; `architectures` stay as Model Optimizer writes them.
"""

import sys
from pathlib import Path

from q36eval.app.sandbox.producers.common import calibration_sequences, copy_tokenizer


def produce(source: Path, calibration: Path, target: Path) -> None:
    """Quantize the BF16 folder `source` and write a complete Hugging Face folder.

    Raises:
        SystemExit: the export quantized nothing (an experts-only recipe that matches no module says it succeeded).
    """
    import modelopt.torch.quantization as mtq
    import torch
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

    model = mtq.quantize(model, mtq.NVFP4_EXPERTS_ONLY_CFG, calibrate)
    with torch.no_grad():
        export_hf_checkpoint(model, dtype=torch.bfloat16, export_dir=target)
    copy_tokenizer(source, target)
    with safe_open(target / "model.safetensors", framework="pt") as stored:
        quantized = sum(name.endswith("weight_scale_2") for name in stored.keys())  # noqa: SIM118 (not a dict)
    if quantized == 0:
        raise SystemExit("Model Optimizer exported no quantized tensor")
    print(f"{quantized} quantized tensors")


if __name__ == "__main__":
    produce(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
