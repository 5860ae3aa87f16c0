"""The memory of the device that a model lies on: what there is, what weights take of it, and what torch holds."""

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
    """What batches of a model take, all of whose layers remember rows, or `one_layer` at a time."""
    emulated = any(isinstance(module, InputQuantizer) for module in model.modules())
    device = next(model.parameters()).device
    return costs_on(model.config, device, model.dtype.itemsize, emulated, one_layer=one_layer)


def costs_on(config: Any, device: torch.device, itemsize: int, emulated: bool, *, one_layer: bool = False) -> Costs:
    """The same of a model that is not there yet."""
    compiled = device.type == "cuda" and fused_layers.covers(config)
    fused = compiled and has_triton() and itemsize == 2
    return Costs.of(
        config,
        itemsize=itemsize,
        emulated=emulated,
        # flash-linear-attention, whose kernels keep less than transformers' own operations
        fused_delta=compiled and find_spec("fla") is not None,
        fused_layers=fused,
        unmasked=fused and is_usable(device, config.head_dim),
        one_layer=one_layer,
    )


def room_of(model: Any, *others: Any, processes: int = 1) -> Room:
    """What there is for the batches of a model, and of the modules `others` that compute beside it.

    On a CPU that is shared by so many `processes`.
    """
    device = next(model.parameters()).device
    packed = any(isinstance(module, PackedWeight) for module in model.modules())
    weights = sum(_weight_bytes(each) for each in (model, *others))
    return room_on(device, PACKED if packed else DECODED, weights, decoded_bytes(model), free_on(device), processes)


def room_before(device: torch.device, placement: str, sizes: Sizes, beside: int, processes: int) -> Room:
    """The same of weights that do not lie there yet, and of `beside` bytes of others."""
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
    """Of a device whose `memory` is what there is in all, and what is free beside the weights."""
    total, free = memory
    host = device.type != "cuda"
    return Room(device_name(device), placement, total, free // processes, weights, decoded, host)


def _weight_bytes(model: Any) -> int:
    """What weights take where they lie; one of a layer that is not read yet has a shape and no memory."""
    packed = (part for module in model.modules() if isinstance(module, PackedWeight) for part in module.buffers())
    memory = {each.data_ptr(): each.untyped_storage().nbytes() for each in (*model.parameters(), *packed)}
    return sum(memory.values())


def decoded_bytes(model: Any) -> int:
    """What a model's packed weights take at most while they are used, those of one module at a time."""
    used = [0]
    for module in model.modules():
        packed = [each for each in module.children() if isinstance(each, PackedWeight)]
        weights = [PackedSize(each.shape.numel(), each.dtype.itemsize, each.fp4 is not None) for each in packed]
        if weights:
            used.append(while_used(weights, next(packed[0].buffers()).is_cuda))
    return max(used)


def while_used(weights: Sequence[PackedSize], on_gpu: bool) -> int:
    """Of one module's packed weights: all decoded, and four float32 copies of what is decoded at a time, but where a
    kernel decodes."""
    on_the_way = [each.values for each in weights if not (each.fp4 and on_gpu and has_triton())]
    decoded = sum(each.values * each.itemsize for each in weights)
    return decoded + 4 * 4 * min(max(on_the_way, default=0), DECODED_AT_ONCE)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200 (cuda:0)`, or `the CPU`."""
    return f"{torch.cuda.get_device_name(device)} ({device})" if device.type == "cuda" else "the CPU"


def free_on(device: torch.device) -> tuple[int, int]:
    """Bytes of a device that this process may use at all, and those that are free; of the host what is free is all.

    What torch holds and does not use is free. Where a share of the device is set for this process, it is no more.
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
"""Words of errors that libraries raise as plain ones."""


DOES_NOT_FIT = "do not fit into the memory that the weights leave"
"""Words of our own error for a row that is too much in the smallest passes."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was not memory enough, on whatever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


def pinned_bytes(size: int) -> int:
    """What pinned host memory for `size` bytes takes: torch asks for the next power of two, of every tensor."""
    return 1 << max(0, size - 1).bit_length()
