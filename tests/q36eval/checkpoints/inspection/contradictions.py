"""Files that say nothing, or say two things; each returns what is named."""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from .damage import WEIGHTS, edit_header, edit_json

INDEX = "model.safetensors.index.json"
OWN_FILE = "hf_quant_config.json"


def no_tensors(folder: Path) -> str:
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 2) + b"{}")
    return WEIGHTS


def empty_configuration(folder: Path) -> str:
    (folder / "config.json").write_text("{}")
    return "config.json"


def header_in_utf16(folder: Path) -> str:
    data = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    blob = data[8 : 8 + length].decode().encode("utf-16")
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(blob)) + blob + data[8 + length :])
    return WEIGHTS


def metadata_that_is_no_text(folder: Path) -> str:
    edit_header(folder, lambda header: header.update({"__metadata__": {"format": 1}}))
    return WEIGHTS


def tensor_twice_in_the_index(folder: Path) -> str:
    names = list(load_file(folder / WEIGHTS))
    entries = [f'"{names[0]}": "other.safetensors"', *(f'"{name}": "{WEIGHTS}"' for name in names)]
    (folder / INDEX).write_text(f'{{"weight_map": {{{", ".join(entries)}}}}}')
    return INDEX


def other_algorithm_in_the_own_file(folder: Path) -> str:
    edit_json(folder, OWN_FILE, lambda own: own["quantization"].update(quant_algo="FP8"))
    return OWN_FILE


def other_algorithm_of_a_layer_in_the_own_file(folder: Path) -> str:
    def change(own: dict[str, Any]) -> None:
        layers = own["quantization"]["quantized_layers"]
        first = next(name for name, given in layers.items() if given["quant_algo"] == "W4A16_NVFP4")
        layers[first]["quant_algo"] = "NVFP4"

    edit_json(folder, OWN_FILE, change)
    return OWN_FILE


def other_compute_dtype(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config.update(dtype="float16"))
    return "config.json"


def flat_configuration_of_a_nested_model(folder: Path) -> str:
    def change(config: dict[str, Any]) -> None:
        config.update(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe")

    edit_json(folder, "config.json", change)
    return "config.json"


def quantized_cache_alone(folder: Path) -> None:
    """What Model Optimizer writes beside BF16 weights that are served with an FP8 KV cache: no damage."""
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (folder / OWN_FILE).write_text(json.dumps(own))
