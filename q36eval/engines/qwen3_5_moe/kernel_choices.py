"""What flash-linear-attention would choose by the stopwatch, chosen once and for all.

Two of its small kernels are tried in 25 and in 4 shapes again for every new number of texts and of tokens in a pass,
each compiled first: of a gate at full shape on a new machine that took 79 of 1,528 seconds. And what is chosen follows
from what else the machine does, while sums in another order may differ in their last bit. Both read and write a row at
a time, at the bandwidth of memory in any shape; its large kernels stay tuned, once for each shape of the model.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

CHOSEN: dict[str, tuple[str, dict[str, int], int]] = {
    "l2norm_fwd_kernel": ("fla.modules.norm.l2norm", {"BT": 32}, 4),
    "chunk_local_cumsum_scalar_kernel": ("fla.ops.utils.cumsum", {}, 4),
}
"""By the kernel's name its module, the arguments of its configuration, and the warps of a program."""


def settle() -> list[str]:
    """Leave each of these kernels one configuration; gives the names of those that have it now.

    Another version of that library may have no such kernel or no such configuration: then it goes on as it does.
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
