"""Loading takes little host memory beside the model itself, whatever the checkpoint's size: measured in a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, VOCABULARY, EXPERTS, INTERMEDIATE, LAYERS = 1024, 49_152, 8, 512, 1
MEASURE = """
import gc, os, sys
from pathlib import Path
from q36eval.checkpoints import load_model

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

def above(large, holding):
    before = kilobytes("VmSize")
    held = (large / "model.safetensors").read_bytes() if holding else None
    loaded = load_model(large, emulate_activations=False)
    model = sum(parameter.nbytes for parameter in loaded.model.parameters())
    return (kilobytes("VmPeak") - before) * 1024 - model

folders = list(map(Path, sys.argv[1:]))
for folder in folders:  # small ones first: what the libraries themselves take is no news
    load_model(folder / "small", emulate_activations=False)
gc.collect()
for folder in folders:
    for holding in (False, True):
        if os.fork() == 0:  # the peak of a process begins anew
            print(above(folder / "large", holding), flush=True)
            os._exit(0)
        if os.wait()[1]:
            sys.exit(f"{folder} was not loaded")
"""


def stored(hidden: int, vocabulary: int) -> dict[str, Tensor]:
    """Random NVFP4 experts and an FP8_BLOCK head."""

    def bf16(*shape: int) -> Tensor:
        return torch.randint(0, 2**14, shape, dtype=torch.int16).view(torch.bfloat16)

    def expert(name: str, out: int, columns: int) -> dict[str, Tensor]:
        return {
            f"{name}.weight_packed": torch.randint(0, 256, (out, columns // 2), dtype=torch.uint8),
            f"{name}.weight_scale": torch.ones(out, columns // 16).to(torch.float8_e4m3fn),
            f"{name}.weight_global_scale": torch.ones(1),
            f"{name}.input_global_scale": torch.ones(1),
        }

    tensors = {"model.embed_tokens.weight": bf16(vocabulary, hidden), "model.norm.weight": bf16(hidden)}
    blocks = (-(-vocabulary // 128), -(-hidden // 128))
    tensors["lm_head.weight"] = torch.ones(vocabulary, hidden).to(torch.float8_e4m3fn)
    tensors["lm_head.weight_scale"] = torch.ones(blocks, dtype=torch.bfloat16)
    for layer in (f"model.layers.{at}" for at in range(LAYERS)):
        shapes = {"q": (512, hidden), "k": (128, hidden), "v": (128, hidden), "o": (hidden, 256)}
        tensors |= {f"{layer}.self_attn.{which}_proj.weight": bf16(*shape) for which, shape in shapes.items()}
        tensors |= {f"{layer}.self_attn.{which}_norm.weight": bf16(64) for which in "qk"}
        tensors |= {f"{layer}.{which}_layernorm.weight": bf16(hidden) for which in ("input", "post_attention")}
        tensors[f"{layer}.mlp.gate.weight"] = bf16(EXPERTS, hidden)
        tensors[f"{layer}.mlp.shared_expert_gate.weight"] = bf16(1, hidden)
        for name in [f"{layer}.mlp.shared_expert", *(f"{layer}.mlp.experts.{e}" for e in range(EXPERTS))]:
            tensors |= expert(f"{name}.gate_proj", INTERMEDIATE, hidden) | expert(
                f"{name}.up_proj", INTERMEDIATE, hidden
            )
            tensors |= expert(f"{name}.down_proj", hidden, INTERMEDIATE)
    return tensors


def write(folder: Path, hidden: int, vocabulary: int) -> int:
    """A checkpoint; returns the bytes of its largest stored tensor."""
    from compressed_tensors.quantization import preset_name_to_scheme
    from golden_base import tiny_config

    nvfp4, fp8 = (
        preset_name_to_scheme(name, [target]).model_dump(mode="json")
        for name, target in (("NVFP4", r"re:.*expert.*_proj$"), ("FP8_BLOCK", "re:.*lm_head$"))
    )
    groups = {"a": nvfp4 | {"format": "nvfp4-pack-quantized"}, "b": fp8 | {"format": "float-quantized"}}
    recipe = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    text = tiny_config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=LAYERS,
        layer_types=["full_attention"] * LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        moe_intermediate_size=INTERMEDIATE,
        shared_expert_intermediate_size=INTERMEDIATE,
    )
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(text.to_dict() | {"quantization_config": recipe}))
    tensors = stored(hidden, vocabulary)
    save_file(tensors, folder / "model.safetensors")
    return max(tensor.nbytes for tensor in tensors.values())


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_peak_memory_above_the_model_stays_under_two_of_the_largest_tensors(tmp_path: Path) -> None:
    """Virtual sizes: a resident size also counts the libraries' own pages, which come back when a busy machine had
    dropped them, and the files are read and never mapped. One arena, since the address space of others is reserved,
    not taken. The weights are so large that what the allocator keeps, 20 to 40 MiB at any size, does not count.
    """
    largest = write(tmp_path / "large", HIDDEN, VOCABULARY)
    write(tmp_path / "small", hidden=256, vocabulary=512)
    alone = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}  # threads do not survive a fork
    command = [sys.executable, "-c", MEASURE, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | alone)
    assert ended.returncode == 0, ended.stderr
    above, holding_the_file = (int(line) for line in ended.stdout.splitlines())
    assert above < 2 * largest
    assert holding_the_file > 2 * largest, "a loader that holds the whole file would pass"
