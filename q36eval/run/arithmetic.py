"""Which arithmetic a GPU uses for a branch whose checkpoint quantizes inputs: as it says, or weight-only."""

from pathlib import Path

from q36eval.checkpoints import open_checkpoint
from q36eval.checkpoints.opened import hold
from q36eval.checkpoints.scheme import Scheme
from q36eval.checkpoints.weights import index_weights

Capability = tuple[int, int]

SINCE: dict[str, tuple[str, Capability, str]] = {
    "nvfp4": ("NVFP4", (10, 0), "Blackwell"),
    "fp8": ("FP8", (8, 9), "Ada, Hopper"),
}
"""By kind of inputs: its name, and since which compute capability vLLM multiplies with such inputs. On older GPUs its
Marlin kernels leave inputs as they are."""


def input_kinds(folder: Path) -> tuple[str, ...]:
    """The kinds of quantized inputs in a checkpoint, by one weight of each scheme.

    Raises:
        UsageError, CorruptCheckpointError: as any that reads it.
    """
    kinds: set[str] = set()
    known: list[Scheme] = []
    for weight in index_weights(open_checkpoint(hold(folder))).weights.values():
        if weight.scheme in known or weight.tensor_class == "embeddings":  # whose inputs are token ids
            continue
        known.append(weight.scheme)
        inputs = weight.activations()
        kinds |= set() if inputs is None else {inputs.kind}
    return tuple(sorted(kinds))


def gpu_here() -> tuple[str, Capability] | None:
    """The first GPU of this machine and its compute capability."""
    import torch

    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)


def gpu_words(kinds: tuple[str, ...], gpu: tuple[str, Capability] | None) -> str:
    """What GPUs make of such inputs, and the one that is here; empty where nothing is known of the kinds."""
    told = []
    for kind in kinds:
        if kind not in SINCE:
            continue
        name, since, generation = SINCE[kind]
        words = f"vLLM quantizes inputs to {name} on GPUs of compute capability {_text(since)} on ({generation})"
        if gpu is None:
            words += ", and serves them weight-only on older ones"
        else:
            use = "quantizes them" if gpu[1] >= since else "serves the branch weight-only"
            words += f"; the {gpu[0]} here ({_text(gpu[1])}) {use}"
        told.append(words + ".")
    return " ".join(told)


def _text(capability: Capability) -> str:
    return ".".join(map(str, capability))
