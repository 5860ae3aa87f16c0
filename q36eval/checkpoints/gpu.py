"""What can be compiled for a GPU here, and its memory given back."""

import gc
from functools import cache
from importlib.util import find_spec
from typing import Any


@cache
def has_triton() -> bool:
    """Whether this environment can compile kernels for its GPU."""
    return find_spec("triton") is not None


def give_back(device: Any) -> None:
    """What nobody uses any more, to the device."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
