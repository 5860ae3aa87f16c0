"""Fixed choices for kernels that flash-linear-attention would tune by timing.

Two of its small kernels are tuned over 25 and 4 shapes for every new number of texts and of tokens in a pass, each
compiled first: of a gate at full shape on a new machine that took 79 of 1,528 seconds. The choice depends on the
machine's other load, while a different order of sums may change the last bit. Both read and write a row at a time, at
the bandwidth of memory in any shape; its large kernels stay tuned, once for each shape of the model.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

CHOSEN: dict[str, tuple[str, dict[str, int], int]] = {
    "l2norm_fwd_kernel": ("fla.modules.norm.l2norm", {"BT": 32}, 4),
    "chunk_local_cumsum_scalar_kernel": ("fla.ops.utils.cumsum", {}, 4),
}
"""By the kernel's name: its module, the arguments of its configuration, and the warps per program."""


def settle() -> list[str]:
    """Leave each of these kernels one configuration; returns the names of the changed ones.

    Another version of that library may lack such a kernel or configuration: it then stays unchanged.
    """
    return [name for name, chosen in CHOSEN.items() if find_spec("fla") is not None and _settled(name, *chosen)]


def _settled(name: str, module: str, arguments: dict[str, int], warps: int) -> bool:
    try:
        kernel: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return False
    while not hasattr(kernel, "configs") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    fitting = [each for each in getattr(kernel, "configs", []) if each.kwargs == arguments and each.num_warps == warps]
    if fitting:
        kernel.configs = fitting[:1]
    return bool(fitting)
