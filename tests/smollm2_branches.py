"""Branches of SmolLM2 by real producers, each producer in a virtual environment of its own, made on the first call.

    python -m tests.smollm2_branches [NAME ...]        make them, or all, and print where they lie

A producer is installed by pip without its dependencies and runs with the torch, transformers and compressed-tensors of
the project, so that an environment takes some megabytes. What it made is kept under the hash of the reference, of the
versions and of the producer's script.
"""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import smollm2

ASSETS = Path(__file__).parent / "assets"
SHARED = ("smollm2_decoded.py", "english.json")
"""What every script reads."""
LIBRARIES = ("torch", "transformers", "compressed-tensors")
MODEL, DECODED = "model", "decoded.json"


@dataclass(frozen=True)
class Producer:
    """What pip installs, and the script that runs with it."""

    packages: tuple[str, ...]
    script: str


LLM_COMPRESSOR = Producer(("llmcompressor==0.14.0.1",), "smollm2_llm_compressor.py")
AUTO_ROUND = Producer(("auto-round==0.16.1", "py-cpuinfo==9.0.0"), "smollm2_auto_round.py")
PRODUCERS = {
    **dict.fromkeys(("w8a8", "fp8-dynamic", "fp8-static-kv", "nvfp4", "w4a16-gptq", "w4a16"), LLM_COMPRESSOR),
    **dict.fromkeys(("autoround-4-gptq", "autoround-4-awq", "autoround-3", "autoround-2"), AUTO_ROUND),
}
"""By branch of the tests; others call `made`."""


@dataclass(frozen=True)
class Branch:
    """A checkpoint folder, and the SHA-256 of each quantized weight as its producer decodes it to BF16."""

    folder: Path
    decoded: dict[str, str]


def branch(name: str) -> Branch:
    """The branch of that name."""
    return Branch(folder := made(name, PRODUCERS[name]), json.loads(folder.with_name(DECODED).read_bytes()))


def made(name: str, producer: Producer) -> Path:
    """What a producer makes of the rescaled reference, made on the first call."""
    reference = smollm2.folder()
    kept = smollm2.cache() / f"smollm2-{name}-{_key(reference, producer)}"
    if kept.is_dir():
        return kept / MODEL
    with smollm2.making(), tempfile.TemporaryDirectory(dir=smollm2.cache()) as place:
        if not kept.is_dir():
            (new := Path(place, "made")).mkdir()
            _run([str(_environment(producer)), str(ASSETS / producer.script), name, str(reference), str(new / MODEL)])
            new.replace(kept)
    return kept / MODEL


def _key(reference: Path, producer: Producer) -> str:
    versions = [f"{library}=={version(library)}" for library in LIBRARIES]
    files = [(ASSETS / name).read_bytes() for name in (producer.script, *SHARED)]
    texts = [reference.name, *producer.packages, *versions]
    return hashlib.sha256(b"\0".join([*(text.encode() for text in texts), *files])).hexdigest()[:16]


def _environment(producer: Producer) -> Path:
    """The Python of a producer's environment, which sees the project's packages behind its own."""
    own = sysconfig.get_path("purelib")
    named = "\0".join([sys.version, own, *producer.packages])
    place = smollm2.cache() / f"environment-{hashlib.sha256(named.encode()).hexdigest()[:16]}"
    python = place / "bin" / "python"
    if not (place / "made").exists():
        venv.create(place, clear=True, symlinks=True)
        try:
            _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", *producer.packages])
        except RuntimeError as error:
            pytest.skip(f"{', '.join(producer.packages)} cannot be installed here: {error}")
        (packages,) = place.glob("lib/python*/site-packages")
        (packages / "project.pth").write_text(f"{own}\n", encoding="utf-8")
        (place / "made").touch()
    return python


def _run(command: list[str]) -> None:
    """Run a command; a failure shows its last lines."""
    settings = os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ASSETS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=settings)
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    for each in sys.argv[1:] or PRODUCERS:
        print(branch(each).folder, flush=True)
