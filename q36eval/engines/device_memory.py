"""The memory of a model's device: its size, the share of the weights, and torch's reserve."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from q36eval.checkpoints.emulation import InputQuantizer
from q36eval.checkpoints.gpu import has_triton
from q36eval.checkpoints.packed import DECODED_AT_ONCE, PackedWeight
from q36eval.checkpoints.placements import DECODED, LAYERS, PACKED
from q36eval.checkpoints.weight_slots import PackedSize, Sizes
from q36eval.engines.memory_plan import Costs, Room
from q36eval.engines.qwen3_5_moe import fused_layers
from q36eval.engines.qwen3_5_moe.attention import is_usable
from q36eval.memory import available_bytes


def costs_of(model: Any, *, one_layer: bool = False) -> Costs:
    """The memory of a model's batches, with caches of all layers, or of `one_layer` at a time."""
    emulated = any(isinstance(module, InputQuantizer) for module in model.modules())
    device = next(model.parameters()).device
    return costs_on(model.config, device, model.dtype.itemsize, emulated, one_layer=one_layer)


def costs_on(config: Any, device: torch.device, itemsize: int, emulated: bool, *, one_layer: bool = False) -> Costs:
    """The same for a model that is not loaded yet."""
    compiled = device.type == "cuda" and fused_layers.covers(config)
    fused = compiled and has_triton() and itemsize == 2
    return Costs.of(
        config,
        itemsize=itemsize,
        emulated=emulated,
        # flash-linear-attention, whose kernels need less memory than transformers' own operations
        fused_delta=compiled and find_spec("fla") is not None,
        fused_layers=fused,
        unmasked=fused and is_usable(device, config.head_dim),
        one_layer=one_layer,
    )


def room_of(model: Any, *others: Any, processes: int = 1) -> Room:
    """The memory for the batches of a model, and of the modules `others` that compute besides it.

    On a CPU it is shared by `processes`.
    """
    device = next(model.parameters()).device
    packed = any(isinstance(module, PackedWeight) for module in model.modules())
    weights = sum(_weight_bytes(each) for each in (model, *others))
    return room_on(device, PACKED if packed else DECODED, weights, decoded_bytes(model), free_on(device), processes)


def room_before(device: torch.device, placement: str, sizes: Sizes, beside: int, processes: int) -> Room:
    """The same for weights that are not loaded yet, and `beside` bytes of others."""
    on_gpu = device.type == "cuda"
    packed = max((while_used(module, on_gpu) for module in sizes.packed_modules), default=0)
    own = {DECODED: sizes.decoded, PACKED: sizes.packed, LAYERS: sizes.around}[placement]
    decoded = {DECODED: 0, PACKED: packed, LAYERS: sizes.layer}[placement]
    total, free = free_on(device)
    weights = own + beside
    return room_on(device, placement, weights, decoded, (total, max(0, free - weights)), processes)


def room_on(
    device: torch.device, placement: str, weights: int, decoded: int, memory: tuple[int, int], processes: int
) -> Room:
    """The same for a device whose `memory` is the total, and the free part without the weights."""
    total, free = memory
    host = device.type != "cuda"
    return Room(device_name(device), placement, total, free // processes, weights, decoded, host)


def _weight_bytes(model: Any) -> int:
    """The memory of the weights on their devices; a layer that is not read yet has shapes but no memory."""
    packed = (part for module in model.modules() if isinstance(module, PackedWeight) for part in module.buffers())
    memory = {each.data_ptr(): each.untyped_storage().nbytes() for each in (*model.parameters(), *packed)}
    return sum(memory.values())


def decoded_bytes(model: Any) -> int:
    """The maximum memory of a model's packed weights in use, one module at a time."""
    used = [0]
    for module in model.modules():
        packed = [each for each in module.children() if isinstance(each, PackedWeight)]
        weights = [PackedSize(each.shape.numel(), each.dtype.itemsize, each.fp4 is not None) for each in packed]
        if weights:
            used.append(while_used(weights, next(packed[0].buffers()).is_cuda))
    return max(used)


def while_used(weights: Sequence[PackedSize], on_gpu: bool) -> int:
    """For one module's packed weights: all decoded, and four float32 copies of the part decoded at a time, unless a
    kernel decodes."""
    on_the_way = [each.values for each in weights if not (each.fp4 and on_gpu and has_triton())]
    decoded = sum(each.values * each.itemsize for each in weights)
    return decoded + 4 * 4 * min(max(on_the_way, default=0), DECODED_AT_ONCE)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200 (cuda:0)`, or `the CPU`."""
    return f"{torch.cuda.get_device_name(device)} ({device})" if device.type == "cuda" else "the CPU"


def free_on(device: torch.device) -> tuple[int, int]:
    """Bytes of a device that this process may use, and the free ones; for the host the free memory is all.

    Memory held but unused by torch is free. A per-process limit of the device lowers both.
    """
    if device.type != "cuda":
        free = available_bytes()
        return free, free
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    share = torch.cuda.get_per_process_memory_fraction(device)
    usable = int(share * total)
    return usable, min(free + reserved - allocated, usable - allocated)


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Substrings of library errors for lack of memory."""


DOES_NOT_FIT = "do not fit into the memory that the weights leave"
"""Substring of our own error for a row that does not fit even in the smallest passes."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error is a lack of memory, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def pinned_bytes(size: int) -> int:
    """Pinned host memory for `size` bytes: torch allocates the next power of two for every tensor."""
    return 1 << max(0, size - 1).bit_length()
