"""Files that were made to break their reader, each as a change to a copy of a sandbox checkpoint."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .damage import EXPERT, WEIGHTS, edit_header, edit_json, edit_tensors

DEEP = 200_000
INDEX = "model.safetensors.index.json"
QUANTIZED = "model.layers.2.mlp.experts.0.down_proj"
"""A module that every quantized branch quantizes."""
MTP = "mtp.fc.weight"
FUSED = "model.layers.0.mlp.experts.gate_up_proj"
Change = Callable[[Path], object]


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content)


def header_of(blob: bytes) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(blob)) + blob)


def part(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))


def empty_tensor(name: str, shape: list[int]) -> Change:
    """A tensor without bytes, after the last one."""

    def add(header: dict[str, Any]) -> None:
        end = max(fields["data_offsets"][1] for key, fields in header.items() if key != "__metadata__")
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end]}

    return lambda folder: edit_header(folder, add)


def read_as(suffix: str, dtype: str) -> Change:
    """The bytes as they are, under another dtype of the same size."""

    def relabel(header: dict[str, Any]) -> None:
        for name in header:
            if name.endswith(suffix):
                header[name]["dtype"] = dtype

    return lambda folder: edit_header(folder, relabel)


def config(**changes: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        document.pop("layer_types", None)
        document.update(changes)

    return lambda folder: edit_json(folder, "config.json", change)


def quantization(**changes: Any) -> Change:
    return lambda folder: edit_json(
        folder, "config.json", lambda document: document["quantization_config"].update(changes)
    )


ENDLESS = r"re:(?:\w|\.|[a-z])+\Z(?<=[0-9])"
"""Tries every way to cut a name into pieces before it gives up."""


def target(pattern: str) -> Change:
    def change(document: dict[str, Any]) -> None:
        for group in document["quantization_config"]["config_groups"].values():
            group["targets"] = [pattern]

    return lambda folder: edit_json(folder, "config.json", change)


def model_optimizers_file_of_nothing(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": None}))
    edit_json(folder, "config.json", lambda document: document.pop("quantization_config"))


def repeated(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1).repeat(16)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)


def number(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[0].reshape(())


def infinite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.tensor([float("inf"), float(tensor[1])])


FILES: list[tuple[str, str, Change, str]] = [
    ("deep header", "main", header_of(b"[" * DEEP), WEIGHTS),
    ("deep header, closed", "main", header_of(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"), WEIGHTS),
    ("deep config", "main", text("config.json", '{"a":' * DEEP), "config.json"),
    ("a billion experts", "main", config(num_experts=10**9), "num_experts"),
    ("a billion layers", "main", config(num_hidden_layers=10**9), "num_hidden_layers"),
    ("many layers of many experts", "main", config(num_hidden_layers=4000, num_experts=4000), "num_experts"),
    ("layers every 0", "main", config(full_attention_interval=0), "full_attention_interval"),
    ("broken size", "main", config(hidden_size=256.0), "hidden_size"),
    ("config of nothing", "main", text("config.json", "{}"), "config.json"),
    ("text part of text", "main", config(text_config="all"), "text_config"),
    ("quantization of text", "main", config(quantization_config="fp8"), "quantization_config"),
    ("groups in a list", "main", quantization(config_groups=[1]), "config_groups"),
    ("group of a number", "main", quantization(config_groups={"group_0": 3}), "quantization_config"),
    ("rules in a list", "gptq-int4", quantization(dynamic=[3]), "dynamic"),
    ("rule of a number", "gptq-int4", quantization(dynamic={"+:.*": 3}), "dynamic"),
    ("layers of numbers", "nvfp4-modelopt", quantization(quant_algo="MIXED_PRECISION", quantized_layers={"a": 3}),
     "quantization configuration"),
    ("a pattern without end", "fp8-head", quantization(ignore=[ENDLESS]), "takes too long"),
    ("a target without end", "main", target(ENDLESS), "takes too long"),
    ("a rule without end", "gptq-int4", quantization(dynamic={"-:" + ENDLESS.removeprefix("re:"): {}}),
     "takes too long"),
    ("nothing in a table's place", "nvfp4-modelopt", model_optimizers_file_of_nothing, "hf_quant_config.json"),
]  # fmt: skip
"""What cannot be judged beyond its header or configuration: what a message must name."""
INDEXES = ['{"weight_map": ["a"]}', '{"weight_map": null}', '{"weight_map": {"lm_head.weight": 3}}']
TENSORS: list[tuple[str, str, Change, str]] = [
    ("an empty tensor without end", "main", empty_tensor(MTP, [0, 10**18, 10**18]), MTP),
    ("an empty tensor of one size", "main", empty_tensor(MTP, [0, 2**63]), MTP),
    ("two billion empty experts", "main", empty_tensor(FUSED, [2_000_000_000, 0, 4]), FUSED),
    ("a global scale per group", "main", part(f"{EXPERT}.up_proj.weight_global_scale", repeated),
     f"{EXPERT}.up_proj.weight"),
    ("an infinite size", "w4a16", part(f"{QUANTIZED}.weight_shape", infinite), f"{QUANTIZED}.weight"),
    ("a scale without axes", "gptq-int4", part(f"{QUANTIZED}.scales", number), f"{QUANTIZED}.weight"),
    ("words in a row, GPTQ", "gptq-int4", part(f"{QUANTIZED}.qweight", flat), f"{QUANTIZED}.weight"),
    ("words in a row", "w4a16", part(f"{QUANTIZED}.weight_packed", flat), f"{QUANTIZED}.weight"),
    ("one word", "w4a16", part(f"{QUANTIZED}.weight_packed", number), f"{QUANTIZED}.weight"),
    ("bytes in a row", "main", part(f"{QUANTIZED}.weight_packed", flat), f"{QUANTIZED}.weight"),
]  # fmt: skip
"""What is about one tensor, which is named while the others are judged."""
DTYPES: list[tuple[str, str, str]] = [
    ("main", ".weight_scale", "U8"),
    ("main", ".weight_scale", "F8_E8M0"),
    ("main", ".weight_packed", "I8"),
    ("main", ".weight_global_scale", "I32"),
    ("main", ".input_global_scale", "I32"),
    ("nvfp4-modelopt", ".weight_scale", "U8"),
    ("nvfp4-modelopt", ".weight_scale_2", "I32"),
    ("fp8-head", "lm_head.weight", "F8_E5M2"),
    ("fp8-head", "lm_head.weight", "I8"),
    ("fp8-head", "lm_head.weight_scale", "I16"),
    ("gptq-int4", ".qweight", "F32"),
    ("gptq-int4", ".scales", "I16"),
    ("gptq-int4", ".g_idx", "F32"),
    ("w4a16", ".weight_packed", "F32"),
    ("w4a16", ".weight_scale", "I16"),
    ("w4a16", ".weight_shape", "F64"),
]
"""Branch, part, and a dtype as wide as its own that would be read as other numbers."""
