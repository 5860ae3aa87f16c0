"""Draft heads for the sandbox's reference, in files of their own."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SANDBOX = Path(__file__).parents[1] / "data" / "sandbox" / "bf16"
TRAINED = SANDBOX.parents[1] / "drafts" / "sandbox"
EXPERTS, INNER = 6, 128


def head_tensors(width: int, seed: int = 3) -> dict[str, Tensor]:
    """A random head by its published names, experts one by one."""
    random = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random) * 0.05).bfloat16()

    layer = "mtp.layers.0"
    tensors = {f"mtp.{name}.weight": matrix(width) for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding")}
    tensors["mtp.fc.weight"] = matrix(width, 2 * width)
    tensors |= {f"{layer}.{name}_layernorm.weight": matrix(width) for name in ("input", "post_attention")}
    for name, rows, columns in (("q", 512, width), ("k", 128, width), ("v", 128, width), ("o", width, 256)):
        tensors[f"{layer}.self_attn.{name}_proj.weight"] = matrix(rows, columns)
    tensors |= {f"{layer}.self_attn.{name}_norm.weight": matrix(64) for name in "qk"}
    tensors[f"{layer}.mlp.gate.weight"] = matrix(EXPERTS, width)
    tensors[f"{layer}.mlp.shared_expert_gate.weight"] = matrix(1, width)
    for module in [f"{layer}.mlp.shared_expert", *(f"{layer}.mlp.experts.{e}" for e in range(EXPERTS))]:
        tensors[f"{module}.gate_proj.weight"] = matrix(INNER, width)
        tensors[f"{module}.up_proj.weight"] = matrix(INNER, width)
        tensors[f"{module}.down_proj.weight"] = matrix(width, INNER)
    return tensors


def with_head(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    """The sandbox's reference with a draft head in a file of its own."""
    folder.mkdir()
    for file in SANDBOX.iterdir():
        (folder / file.name).symlink_to(file)
    document = json.loads((SANDBOX / "config.json").read_text()) | config
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(document))
    save_file(tensors, folder / "model_mtp.safetensors", metadata={"format": "pt"})
    return folder
