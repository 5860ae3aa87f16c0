"""Loading takes little host memory beside the model itself, whatever the checkpoint's size: measured in a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.q36eval.checkpoints.architectures import quantize

HIDDEN, VOCABULARY, INTERMEDIATE = 1024, 49_152, 512
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


def write(folder: Path, hidden: int, vocabulary: int) -> int:
    """A checkpoint in FP8, its head too; returns the bytes of its largest stored tensor."""
    from golden_base import tiny_config
    from transformers import Qwen3_5MoeForCausalLM

    config = tiny_config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        num_experts=8,
        moe_intermediate_size=INTERMEDIATE,
        shared_expert_intermediate_size=INTERMEDIATE,
    )
    Qwen3_5MoeForCausalLM(config).bfloat16().save_pretrained(folder)
    quantize(folder, head=True)
    return max(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())


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
