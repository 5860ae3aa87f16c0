"""Ways to damage a copy of a sandbox checkpoint, each returning the tensor or file an inspection must name."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
EXPERT = "model.layers.3.mlp.experts.4"
Tensors = dict[str, torch.Tensor]


def edit_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    contiguous = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})


def edit_json(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((folder / name).read_text(encoding="utf-8"))
    change(document)
    (folder / name).write_text(json.dumps(document), encoding="utf-8")


def truncated(folder: Path) -> str:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-1000])
    return WEIGHTS


def flipped_header_byte(folder: Path) -> str:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[20] ^= 0x80
    (folder / WEIGHTS).write_bytes(data)
    return WEIGHTS


def edit_header(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    blob = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(blob)) + blob + data[8 + length :])


def input_norms(header: dict[str, Any]) -> list[str]:
    """In the order of their bytes."""
    norms = [name for name in header if name.endswith("input_layernorm.weight")]
    return sorted(norms, key=lambda name: header[name]["data_offsets"])


def overlapping_offsets(folder: Path) -> str:
    def overlap(header: dict[str, Any]) -> None:
        first, second = input_norms(header)[:2]
        header[second]["data_offsets"] = header[first]["data_offsets"]

    edit_header(folder, overlap)
    return WEIGHTS


def many_header_faults(folder: Path) -> str:
    """Three unknown dtypes, and two tensors that reach into the next one."""

    def spoil(header: dict[str, Any]) -> None:
        norms = input_norms(header)
        for name in norms[:3]:
            header[name]["dtype"] = "F7"
        for name in norms[3:5]:
            header[name]["data_offsets"][1] += 2
            header[name]["shape"][0] += 1

    edit_header(folder, spoil)
    return WEIGHTS


def malformed_pattern(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config["quantization_config"]["ignore"].append("re:(head"))
    return "config.json"


def malformed_rule(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config["quantization_config"]["dynamic"].update({"+:(": {}}))
    return "config.json"


def wrong_shard(folder: Path) -> str:
    """Two shards with an index that puts one tensor into the other one."""
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    files = {name: f"model-0000{1 + (n > len(names) // 2)}-of-00002.safetensors" for n, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / WEIGHTS).unlink()
    files[names[0]] = files[names[-1]]
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return names[0]


def exchanged_tokens(folder: Path) -> str:
    def exchange(core: dict[str, Any]) -> None:
        vocabulary = core["model"]["vocab"]
        one, other = list(vocabulary)[300:302]
        vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]

    edit_json(folder, "tokenizer.json", exchange)
    return "tokenizer.json"


def missing_chat_template(folder: Path) -> str:
    (folder / "chat_template.jinja").unlink()
    return "chat_template.jinja"


def other_chat_template(folder: Path) -> str:
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "\n{# [bold] #}\n")
    return "chat_template.jinja"


def other_generation_config(folder: Path) -> str:
    edit_json(folder, "generation_config.json", lambda config: config.update(eos_token_id=1))
    return "generation_config.json"


def no_architectures(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config.update(architectures=None))
    return "config.json"


def other_top_k(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config.update(num_experts_per_tok=1))
    return "config.json"


def top_k_by_default(folder: Path) -> str:
    """Left out, transformers takes 8."""
    edit_json(folder, "config.json", lambda config: config.pop("num_experts_per_tok"))
    return "config.json"


def other_layer_types(folder: Path) -> str:
    def change(config: dict[str, Any]) -> None:
        config["layer_types"][1] = "full_attention"

    edit_json(folder, "config.json", change)
    return "model.layers.1"


def dead_ignore_list(folder: Path) -> str:
    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["ignore"] = ["re:.*nothing_here.*"]

    edit_json(folder, "config.json", change)
    return "config.json"


def declared_but_not_stored(folder: Path) -> str:
    """The head is declared as quantized, and stored in BF16."""

    def change(config: dict[str, Any]) -> None:
        quantization = config["quantization_config"]
        quantization["ignore"].remove("lm_head")
        next(iter(quantization["config_groups"].values()))["targets"].append("lm_head")

    edit_json(folder, "config.json", change)
    return "lm_head"


def dead_group(folder: Path) -> str:
    def change(config: dict[str, Any]) -> None:
        groups = config["quantization_config"]["config_groups"]
        groups["group_9"] = {**next(iter(groups.values())), "targets": ["re:.*nothing_here.*"]}

    edit_json(folder, "config.json", change)
    return "group_9"


def stray_file(folder: Path) -> str:
    (folder / "extra.safetensors").write_bytes((folder / WEIGHTS).read_bytes())
    return "extra.safetensors"


def head_that_would_be_ignored(folder: Path) -> str:
    edit_json(folder, "config.json", lambda config: config.update(tie_word_embeddings=True))
    return "lm_head.weight"


def token_without_embedding(folder: Path) -> str:
    def add(core: dict[str, Any]) -> None:
        core["model"]["vocab"]["beyond"] = 1024

    edit_json(folder, "tokenizer.json", add)
    return "tokenizer.json"


def stored_twice(folder: Path) -> str:
    tensors = load_file(folder / WEIGHTS)
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, folder / "model_mtp.safetensors")
    return "lm_head.weight"
