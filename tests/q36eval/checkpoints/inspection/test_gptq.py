"""GPTQ as its configuration declares it module by module: other widths, and zero-points that need not be symmetric."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from q36eval.checkpoints.inspection import inspect_checkpoint
from tests.branches import folder_of

from .damage import SANDBOX

EXPERTS = r"layers\.3\.mlp\.experts\.\d+\.\w+_proj"


def gptq(reference: Path, folder: Path, experts: str, bits: int, sym: bool, group: int = 128) -> None:
    """Write experts whose names match again into a GPTQ checkpoint (version 1), rounded to nearest under an override
    of their own."""
    tensors, original = load_file(folder / "model.safetensors"), load_file(reference / "model.safetensors")
    top = 2**bits - 1
    for name in [name for name in original if re.search(experts, name)]:
        weight = original[name].float()
        groups = weight.unflatten(1, (-1, min(group, weight.shape[1])))
        low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
        scale = ((torch.maximum(high, -low) * 2 if sym else high - low) / top).half()
        zero = torch.full_like(scale, (top + 1) // 2) if sym else (-low / scale.float()).round()
        codes = (groups / scale.unsqueeze(-1).float() + zero.unsqueeze(-1).float()).round().clamp(0, top).flatten(1)
        module = name.removesuffix(".weight")
        tensors |= {
            f"{module}.qweight": pack(codes.T.long(), bits),
            f"{module}.qzeros": pack((zero.long() - 1) & top, bits).T.contiguous(),
            f"{module}.scales": scale.T.contiguous(),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["dynamic"][f"+:.*{experts}"] = {"bits": bits, "sym": sym}
    (folder / "config.json").write_text(json.dumps(config))


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 words [n · bits / 32, m] from integers [n, m]: one stream of bits down each column, lowest first."""
    stream = ((values.unsqueeze(1) >> torch.arange(bits)[None, :, None]) & 1).flatten(0, 1)
    stream = torch.nn.functional.pad(stream, (0, 0, 0, -len(stream) % 32)).unflatten(0, (-1, 32))
    words = (stream << torch.arange(32)[None, :, None]).sum(1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


@pytest.mark.long
@pytest.mark.parametrize(("bits", "sym"), [(3, False), (8, True)])
def test_what_an_override_declares_is_clean(bits: int, sym: bool, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folder_of("gptq-int4"), tmp_path / "copy"))
    gptq(SANDBOX / "bf16", folder, EXPERTS, bits, sym)
    assert not inspect_checkpoint(folder, SANDBOX / "bf16", weights_workers=2).blocking
