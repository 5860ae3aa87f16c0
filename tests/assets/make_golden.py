"""Write the golden checkpoints: `python tests/assets/make_golden.py NAME`, then `manifest`.

Each is a tiny random `qwen3_5_moe` quantized and saved by its real producer, with what the producer's own code decodes
its weights to. Environments as in `benchmarks/sandbox/quantize.py`; versions are in `PRODUCERS`. `golden/` holds

- `NAME/`: `config.json`, `model.safetensors` and, from Model Optimizer, `hf_quant_config.json`, as the producer wrote
  them;
- `decoded/NAME.safetensors`: every quantized weight as the producer's own code decodes it: compressed-tensors'
  `decompress_module` and GPTQModel's and transformers' decoders in BF16, Model Optimizer's `QTensor.dequantize` in
  float32. Checkpoints of the same codes in two serializations share one.

`manifest` writes `golden/MANIFEST.json`: producer, version and the SHA-256 of every file.
"""

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
KEPT = ("config.json", "hf_quant_config.json", "model.safetensors")
SAME_CODES = {"gptq-v2": "gptq-v1", "tf-fp8-per-expert": "tf-fp8-fused"}
PRODUCERS = {
    "ct-w4a16-ordered": (
        "golden_llm_compressor",
        "make_ordered",
        "llm-compressor 0.8.1, compressed-tensors 0.12.2",
    ),
    "ct": ("golden_llm_compressor", "make_compressed", "llm-compressor 0.14.0.1, compressed-tensors 0.19.0"),
    "modelopt": ("golden_modelopt", "make_modelopt", "nvidia-modelopt 0.47.0"),
    "gptq": ("golden_gptqmodel", "make_gptq", "GPTQModel 7.3.4 (its packer)"),
    "autoround": ("golden_auto_round", "make_auto_round", "auto-round 0.16.1"),
    "tf": ("golden_transformers", "make_fp8", "transformers 5.17.0"),
}
"""Module, function and version of what makes a checkpoint, by its name or the beginning of it."""


def producer_of(name: str) -> tuple[str, str, str]:
    """The entry of `PRODUCERS` for a checkpoint."""
    return PRODUCERS.get(name) or PRODUCERS[name.partition("-")[0]]


def make(name: str) -> None:
    """Write `golden/NAME` anew."""
    module, function, _ = producer_of(name)
    with tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / name
        getattr(importlib.import_module(module), function)(name, written)
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
        (GOLDEN / name).mkdir(parents=True)
        for file in KEPT:
            if (written / file).is_file():
                shutil.copyfile(written / file, GOLDEN / name / file)
        decoded = GOLDEN / "decoded" / f"{SAME_CODES.get(name, name)}.safetensors"
        if name in SAME_CODES and decoded.read_bytes() != (written.parent / "decoded.safetensors").read_bytes():
            raise SystemExit(f"{name} does not decode to the same as {SAME_CODES[name]}")
        shutil.copyfile(written.parent / "decoded.safetensors", decoded)


def write_manifest() -> None:
    """Hash what lies in `golden/`."""
    entries = {}
    for folder in sorted(file for file in GOLDEN.iterdir() if file.is_dir() and file.name != "decoded"):
        decoded = GOLDEN / "decoded" / f"{SAME_CODES.get(folder.name, folder.name)}.safetensors"
        files = [*sorted(folder.iterdir()), decoded]
        hashes = {str(file.relative_to(GOLDEN)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        entries[folder.name] = {"producer": producer_of(folder.name)[2], "decoded": decoded.stem, "files": hashes}
    (GOLDEN / "MANIFEST.json").write_text(json.dumps(entries, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "manifest":
        write_manifest()
    else:
        make(sys.argv[1])
