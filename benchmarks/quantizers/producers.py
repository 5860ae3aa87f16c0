"""Branches of SmolLM2 by real producers, each made on the first call and kept in the tests' cache.

    python -m benchmarks.quantizers.producers [NAME ...]     make them, or all, and print name, path, seconds, bytes

Names are those of `set-aside.yaml`, `gguf-bf16`, which is the reference unquantized, and `w8a16`, of the demo.
"""

import sys
import time
from pathlib import Path

from tests.smollm2_branches import LLM_COMPRESSOR, PRODUCERS, Producer, made

HERE = Path(__file__).parent
OF_TESTS = {
    **{name: name for name in ("fp8-dynamic", "fp8-static-kv", "nvfp4", "w4a16-gptq", "autoround-3", "autoround-2")},
    "w8a8-llmcompressor": "w8a8",
    "w4a16-rtn": "w4a16",
    "autoround-4": "autoround-4-gptq",
}
"""Names that the tests have for branches that they make as well."""
MORE_OF_LLM_COMPRESSOR = ("fp8-block", "mxfp4", "w4a16-awq", "w8a16", "nvfp4-fouroversix", "nvfp4-expanded-mse")

GGUF = ("bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0", "q3_k_m", "q2_k", "iq4_xs", "q4_k_m-imatrix")

MODEL_OPTIMIZER = ("nvidia-modelopt==0.47.0", "nvidia-ml-py==13.615.71", "omegaconf==2.4.0", "pulp==3.3.2")

GPTQ = (
    *("gptqmodel==7.3.4", "device-smi==0.5.7", "pypcre==0.6.4", "tokenicer==0.0.14"),
    *("logbar==0.4.15", "defuser==0.0.28", "torchao==0.18.0"),
)


def _producer(packages: tuple[str, ...], script: str) -> Producer:
    return Producer(packages, str(HERE / script))


BRANCHES: dict[str, tuple[str, Producer]] = {
    **{name: (other, PRODUCERS[other]) for name, other in OF_TESTS.items()},
    **{name: (name, _producer(LLM_COMPRESSOR.packages, "llm_compressor.py")) for name in MORE_OF_LLM_COMPRESSOR},
    **{f"gguf-{kind}": (f"gguf-{kind}", _producer(("gguf==0.19.0",), "llama_cpp.py")) for kind in GGUF},
    **{name: (name, _producer(MODEL_OPTIMIZER, "model_optimizer.py")) for name in ("modelopt-fp8", "modelopt-nvfp4")},
    "gptqmodel-4": ("gptqmodel-4", _producer(GPTQ, "gptq.py")),
}
"""By branch: the name that its producer's script knows, and the producer."""


def branch(name: str) -> Path:
    """A checkpoint folder, or a GGUF file."""
    folder = made(*BRANCHES[name])
    return next(folder.glob("*.gguf"), folder)


def main() -> None:
    """Make the branches named by the arguments."""
    for name in sys.argv[1:] or BRANCHES:
        start = time.perf_counter()
        path = branch(name)
        size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
        print(name, path, f"{time.perf_counter() - start:.1f} s", f"{size:,} bytes", sep="\t", flush=True)


if __name__ == "__main__":
    main()
