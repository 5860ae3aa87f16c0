"""Where each stored weight belongs in a model, and decoding it into its place: at once, packed, or layer by layer."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn

from q36eval.checkpoints.architecture import Outline, Place
from q36eval.checkpoints.expert_stacks import (
    FP4,
    Stack,
    Stored,
    covers,
    decode_each,
    decode_stack,
    finite_each,
    read_ahead,
    stacks_of,
)
from q36eval.checkpoints.expert_stacks import (
    Place as Part,
)
from q36eval.checkpoints.formats.stacked import can_be_stacked
from q36eval.checkpoints.packed import PackedWeight
from q36eval.checkpoints.placements import DECODED, LAYERS, PACKED
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import PLAIN
from q36eval.checkpoints.stored_groups import Parts, give_back_pinned
from q36eval.checkpoints.weights import SLAB_ELEMENTS, UNDECODABLE, LogicalWeight, WeightIndex, lacks_memory
from q36eval.errors import CorruptCheckpointError
from q36eval.memory import available_bytes

Plan = dict[str, list[tuple[Part, LogicalWeight]]]
"""By parameter, which weights it is made of and where in it each belongs."""


def plan_of(outline: Outline, checkpoint: Checkpoint, index: WeightIndex, below: str = "") -> Plan:
    """Each parameter's weights, after checking that all of them, and nothing else, are there exactly once.

    `below` is what the names of the weights begin with and those of the model do not.

    Raises:
        CorruptCheckpointError: a weight is missing or unexpected.
        UsageError: as `Outline.places`.
    """
    weights = {name.removeprefix(below): weight for name, weight in index.weights.items()}
    found = outline.places(list(weights))
    if found.unexpected:
        stored = weights[found.unexpected[0]].stored_names[0]
        raise CorruptCheckpointError(
            "tensor-unexpected", f"{checkpoint.path}: tensor {stored!r} is unexpected in this model."
        )
    if found.missing:
        more = f" (and {len(found.missing) - 1} more)" if len(found.missing) > 1 else ""
        what = below + found.missing[0]
        raise CorruptCheckpointError("tensor-missing", f"{checkpoint.path}: tensor {what!r} is missing{more}.")
    plan: Plan = defaultdict(list)
    for name, place in found.of.items():
        plan[place.parameter].append((place.part, weights[name]))
    for name, source in outline.tied.items():
        leave_out_tied(plan, name, source)
    return plan


def places_in(plan: Plan) -> dict[str, Place]:
    """Where each planned weight goes, by its name."""
    return {weight.name: Place(parameter, part) for parameter, weights in plan.items() for part, weight in weights}


def leave_out_tied(plan: Plan, name: str, source: str) -> None:
    """Take a parameter that is another one out of the plan, where it is stored too.

    Raises:
        CorruptCheckpointError: both are stored, with other values: engines differ in which of them they read.
    """
    if name not in plan or source not in plan:
        return
    (_, weight), (_, other) = plan.pop(name)[0], plan[source][0]
    if not torch.equal(weight.read()[0], other.read()[0]):
        raise CorruptCheckpointError(
            "head-not-tied",
            f"{weight.checkpoint.path}: config.json ties {name} to {source}, but both are stored and differ.",
        )


Stacks = dict[str, list[Stack]]
"""By parameter, the stacks of weights that it is made of."""


def stacked(plan: Plan) -> Stacks:
    """What is planned, in stacks."""
    return {name: stacks_of(weights) for name, weights in plan.items()}


READ_AHEAD_BYTES = 2**29
"""What may lie in host memory beside the weights in work: two layers' experts in NVFP4, no embedding."""
USABLE_SHARE = 0.85
"""Of the free memory, so much may be taken by weights; the rest is for what is computed with them."""


@dataclass(frozen=True)
class PackedSize:
    """Of one packed weight: its values, the bytes of each once it is decoded, and whether it is FP4 throughout."""

    values: int
    itemsize: int
    fp4: bool


@dataclass(frozen=True)
class Sizes:
    """What a model's weights take on a device, in bytes, wherever they are placed."""

    decoded: int
    packed: int
    """As stored where they can stay so, decoded where not."""
    packed_modules: tuple[tuple[PackedSize, ...], ...]
    """Of every module with packed weights."""
    around: int
    """Decoded, what belongs to no layer."""
    layer: int
    """The largest layer, decoded."""

    @classmethod
    def of(cls, plan: Plan, outline: Outline, dtype: torch.dtype) -> "Sizes":
        """Of a model that is planned like that."""
        values = {name: math.prod(outline.shapes[name]) for name in plan}
        stays_packed = [name for name, weights in plan.items() if all(weight.scheme != PLAIN for _, weight in weights)]
        stored = sum(weight.stored_bytes for name in stays_packed for _, weight in plan[name])
        modules: dict[str, list[PackedSize]] = defaultdict(list)
        for name in stays_packed:
            fp4 = all(weight.scheme.format in FP4 for _, weight in plan[name])
            modules[name.rpartition(".")[0]].append(PackedSize(values[name], dtype.itemsize, fp4))
        layers: dict[int | None, int] = defaultdict(int)
        for name, count in values.items():
            layers[outline.layer_of(name)] += count * dtype.itemsize
        decoded = sum(layers.values())
        return cls(
            decoded=decoded,
            packed=decoded - sum(values[name] * dtype.itemsize for name in stays_packed) + stored,
            packed_modules=tuple(map(tuple, modules.values())),
            around=layers.pop(None, 0),
            layer=max(layers.values(), default=0),
        )

    def first_that_fits(self, device: torch.device) -> str:
        """The placement that computes fastest of those whose weights the device has room for."""
        packed = (weight for module in self.packed_modules for weight in module)
        at_a_time = max((weight.values * weight.itemsize for weight in packed), default=0)
        usable = USABLE_SHARE * free_bytes(device)
        return DECODED if self.decoded <= usable else PACKED if self.packed + at_a_time <= usable else LAYERS


def free_bytes(device: torch.device) -> float:
    """The device's free memory; of the host, also what can be freed."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(available_bytes())


@dataclass(frozen=True)
class Decoder:
    """Decodes weights into a model's parameters."""

    model: nn.Module
    outline: Outline
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    packs: bool = False
    """Whether quantized weights stay packed."""
    packed: dict[str, PackedWeight] = field(default_factory=dict)
    """By parameter, to be put in its place once the model is complete."""

    def fill(self, stacks: Stacks) -> None:
        """Decode all of them; raises as `decode`."""
        try:
            self.decode(stacks, self.reading(stacks))
        finally:
            give_back_pinned()

    def reading(self, stacks: Stacks, budget: int | None = None) -> Stored:
        """All of them in order, each with its parts in host memory; the next ones are read meanwhile.

        What lies ahead of the one in work stays under `budget` bytes. By default that is `READ_AHEAD_BYTES`, or one
        stack, on the way to a GPU, and half of the largest tensor elsewhere, since it is the same memory.
        """
        on_gpu = self.device.type == "cuda"
        in_order = [stack for of_parameter in stacks.values() for stack in of_parameter]
        if budget is None and on_gpu:
            budget = max([READ_AHEAD_BYTES, *(stack.stored_bytes for stack in in_order)])
        elif budget is None:
            largest = max((entry.n_bytes for entry in self.checkpoint.tensors.values()), default=0)
            budget = min(READ_AHEAD_BYTES, largest // 2)
        return read_ahead(in_order, budget, pinned=on_gpu)

    def decode(self, stacks: Stacks, stored: Stored) -> None:
        """Decode the next of `stored`, which are `stacks` in their order, into their parameters.

        Raises:
            CorruptCheckpointError: a weight cannot be decoded, does not fit, or holds what is no finite number.
        """
        for name, of_parameter in stacks.items():
            shape = torch.Size(self.outline.shapes[name])
            if self.packs and all(stack.scheme != PLAIN for stack in of_parameter):
                self._pack(name, of_parameter, [self._placed(*next(stored), shape) for _ in of_parameter])
                continue
            target = torch.empty(shape, dtype=self.outline.dtype_of(name, self.dtype), device=self.device)
            for _ in of_parameter:
                self._decode(*self._placed(*next(stored), shape), target)
            self._check_finite(of_parameter, target)
            self.put(name, target)

    def _decode(self, stack: Stack, parts: Parts, is_one: bool, target: torch.Tensor) -> None:
        try:
            if is_one:
                at_once = SLAB_ELEMENTS["cpu" if self.device.type == "cpu" else "cuda"]
                decode_stack(parts, stack.scheme, stack.places, target, at_once, covers(stack.places, target.shape))
            else:
                decode_each(parts, stack.scheme, stack.places, target)
        except UNDECODABLE as error:
            if lacks_memory(error):
                raise
            _tell_whose(stack, parts, target)
            raise

    def _placed(self, stack: Stack, read: Callable[[], Parts], shape: torch.Size) -> tuple[Stack, Parts, bool]:
        """A stack, its parts on the device, which fit, and whether they are decoded together; raises as `decode`."""
        parts = read()
        needed = _rows_of(stack.places[0], shape)
        stack.weights[0].check_shape({part: tensor[0] for part, tensor in parts.items()}, needed)
        is_one = can_be_stacked(parts, stack.scheme, needed[0] if needed else 1)  # asked where they lie in host memory
        if not is_one:  # they differ in what they hold, and each has to fit
            for at, weight in enumerate(stack.weights):
                weight.check_shape({part: tensor[at] for part, tensor in parts.items()}, needed)
        return stack, {part: tensor.to(self.device, non_blocking=True) for part, tensor in parts.items()}, is_one

    def _pack(self, name: str, of_parameter: list[Stack], placed: list[tuple[Stack, Parts, bool]]) -> None:
        """Keep a parameter's parts on the device, after decoding it once to see that it can be; raises as `decode`."""
        packed = PackedWeight(torch.Size(self.outline.shapes[name]), self.dtype, placed)
        decoded = torch.empty(packed.shape, dtype=self.dtype, device=self.device)
        for stack, parts, is_one in placed:
            self._decode(stack, parts, is_one, decoded)
        self._check_finite(of_parameter, decoded)
        self.packed[name] = packed
        self.empty([name])

    def _check_finite(self, of_parameter: list[Stack], target: torch.Tensor) -> None:
        finite = torch.cat([finite_each(stack.places, target) for stack in of_parameter]).tolist()
        weights = [weight for stack in of_parameter for weight in stack.weights]
        for weight, good in zip(weights, finite, strict=True):
            if not good:
                raise CorruptCheckpointError(
                    "tensor-not-finite",
                    f"{self.checkpoint.path}: {weight.name}: it holds values that are not finite.",
                )

    def empty(self, names: Iterable[str]) -> None:
        """Put a NaN in the place of each of those parameters, of its shape and on its device, without its memory."""
        nothing = torch.full((1,), torch.nan, dtype=self.dtype, device=self.device)
        for name in names:
            self.put(name, nothing.expand(self.outline.shapes[name]))

    def put(self, name: str, value: torch.Tensor) -> None:
        """Make `value` the parameter of that name."""
        module, _, attribute = name.rpartition(".")
        owner = self.model.get_submodule(module)
        is_buffer = attribute in owner._buffers
        setattr(owner, attribute, value if is_buffer else nn.Parameter(value, requires_grad=False))


def _tell_whose(stack: Stack, parts: Parts, target: torch.Tensor) -> None:
    """Raise the fault of the first weight of a stack that cannot be decoded, named; raises as `Decoder.decode`."""
    for at, (place, weight) in enumerate(zip(stack.places, stack.weights, strict=True)):
        with weight.named_faults():
            decode_each({part: tensor[at : at + 1] for part, tensor in parts.items()}, stack.scheme, [place], target)


def _rows_of(place: Part, shape: torch.Size) -> tuple[int, ...]:
    """The shape of what belongs into a place of a parameter of that shape."""
    return tuple(shape) if place is None else (len(range(shape[1])[place[1]]), *shape[2:])


class StoredLayers:
    """The layers of a model whose weights stay in the checkpoint's files until their turn comes."""

    def __init__(self, decoder: Decoder, stacks: Stacks) -> None:
        self._decoder = decoder
        self._layers: list[Stacks] = []
        self.around: Stacks = {}
        """What belongs to no layer."""
        for name, of_parameter in stacks.items():
            layer = decoder.outline.layer_of(name)
            if layer is None:
                self.around[name] = of_parameter
                continue
            while len(self._layers) <= layer:
                self._layers.append({})
            self._layers[layer][name] = of_parameter
        for stored in self._layers:
            decoder.empty(stored)

    def __len__(self) -> int:
        return len(self._layers)

    @property
    def stored_bytes(self) -> int:
        """What the largest layer takes in the files."""
        return max(map(_stored_bytes, self._layers), default=0)

    @property
    def decoded_bytes(self) -> int:
        """What the largest layer takes on the device."""
        shapes, size = self._decoder.outline.shapes, self._decoder.dtype.itemsize
        layers = (sum(math.prod(shapes[name]) for name in layer) for layer in self._layers)
        return max(layers, default=0) * size

    def one_by_one(self, first: int = 0) -> Iterator[int]:
        """Each layer's index from `first` on, while its weights are on the device; the next one is read meanwhile.

        Every stored tensor of these layers is read once.

        Raises:
            CorruptCheckpointError: as `load_model`.
        """
        layers = self._layers[first:]
        everything = {name: of_parameter for layer in layers for name, of_parameter in layer.items()}
        stored = self._decoder.reading(everything, budget=self.stored_bytes)
        try:
            for at, layer in enumerate(layers, first):
                try:
                    self._decoder.decode(layer, stored)
                    yield at
                finally:
                    self._decoder.empty(layer)
        finally:
            stored.close()  # or what was read last is held on to
            give_back_pinned()


def _stored_bytes(stacks: Stacks) -> int:
    return sum(stack.stored_bytes for of_parameter in stacks.values() for stack in of_parameter)
