"""Where each stored weight belongs in a model, and decoding it into its place: at once, packed, or layer by layer."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from q36eval.checkpoints.packed import PackedWeight
from q36eval.checkpoints.placements import DECODED, LAYERS, PACKED
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import PLAIN
from q36eval.checkpoints.weights import LogicalWeight, WeightIndex, all_finite, read_ahead
from q36eval.errors import CorruptCheckpointError
from q36eval.memory import available_bytes

_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)\.(?P<projection>gate|up|down)_proj\.weight")
WHOLE = "whole"
_IN_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.")


@dataclass(frozen=True)
class Slot:
    """Part of a parameter: an expert's rows of a fused parameter, or all of it."""

    parameter: str
    key: str = WHOLE
    expert: int | None = None
    rows: slice = field(default_factory=lambda: slice(None))


Plan = dict[str, list[tuple[Slot, LogicalWeight]]]
"""By parameter, which weights it is made of and where each belongs."""


def _slot(name: str, parameters: dict[str, nn.Parameter]) -> Slot | None:
    """Where a logical weight belongs, None when the model has no such place."""
    if name in parameters:
        return Slot(name)
    match = _EXPERT.fullmatch(name)
    if not match:
        return None
    projection, expert = match["projection"], int(match["index"])
    parameter = f"{match['experts']}.{'down_proj' if projection == 'down' else 'gate_up_proj'}"
    if parameter not in parameters or expert >= parameters[parameter].shape[0]:
        return None
    half = parameters[parameter].shape[1] // 2
    rows = {"gate": slice(0, half), "up": slice(half, None), "down": slice(None)}[projection]
    return Slot(parameter, f"{expert}.{projection}_proj", expert, rows)


def _expected_slots(name: str, parameter: nn.Parameter) -> set[str]:
    if name.endswith(".mlp.experts.gate_up_proj"):
        return {f"{expert}.{half}_proj" for expert in range(parameter.shape[0]) for half in ("gate", "up")}
    if name.endswith(".mlp.experts.down_proj"):
        return {f"{expert}.down_proj" for expert in range(parameter.shape[0])}
    return {WHOLE}


def plan_of(model: nn.Module, checkpoint: Checkpoint, index: WeightIndex) -> Plan:
    """Each parameter's weights, after checking that all of them, and nothing else, are there exactly once."""
    parameters = dict(model.named_parameters())
    plan: Plan = defaultdict(list)
    for weight in index.weights.values():
        slot = _slot(weight.name, parameters)
        if slot is None:
            raise CorruptCheckpointError(
                f"{checkpoint.path}: tensor {weight.stored_names[0]!r} is unexpected in this model."
            )
        plan[slot.parameter].append((slot, weight))
    for name, parameter in parameters.items():
        missing = sorted(_expected_slots(name, parameter) - {slot.key for slot, _ in plan[name]})
        if missing:
            what = name if missing[0] == WHOLE else f"{name.rpartition('.')[0]}.{missing[0]}.weight"
            more = f" (and {len(missing) - 1} more of {name})" if len(missing) > 1 else ""
            raise CorruptCheckpointError(f"{checkpoint.path}: tensor {what!r} is missing{more}.")
    return plan


STACKED_FORMATS = ("nvfp4-pack-quantized", "modelopt-nvfp4")
"""Those whose parts `PackedWeight` stacks, most of the time."""

USABLE_SHARE = 0.85
"""Of the free memory, so much may be taken by weights; the rest is for what is computed with them."""


@dataclass(frozen=True)
class PackedSize:
    """Of one packed weight: its values, the bytes of each once it is decoded, and whether its parts are stacked."""

    values: int
    itemsize: int
    stacked: bool


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
    def of(cls, plan: Plan, model: nn.Module, dtype: torch.dtype) -> "Sizes":
        """Of a model that may have shapes alone."""
        values = {name: model.get_parameter(name).numel() for name in plan}
        stays_packed = [name for name, weights in plan.items() if _packable(weights)]
        stored = sum(_stored_bytes({name: plan[name]}) for name in stays_packed)
        modules: dict[str, list[PackedSize]] = defaultdict(list)
        for name in stays_packed:
            stacked = all(weight.scheme.format in STACKED_FORMATS for _, weight in plan[name])
            modules[name.rpartition(".")[0]].append(PackedSize(values[name], dtype.itemsize, stacked))
        layers: dict[str, int] = defaultdict(int)
        for name, count in values.items():
            match = _IN_LAYER.match(name)
            layers["" if match is None else match["layer"]] += count * dtype.itemsize
        decoded = sum(layers.values())
        return cls(
            decoded=decoded,
            packed=decoded - sum(values[name] * dtype.itemsize for name in stays_packed) + stored,
            packed_modules=tuple(map(tuple, modules.values())),
            around=layers.pop("", 0),
            layer=max(layers.values(), default=0),
        )

    def first_that_fits(self, device: torch.device) -> str:
        """The placement that computes fastest of those whose weights the device has room for."""
        packed = (weight for module in self.packed_modules for weight in module)
        at_a_time = max((weight.values * weight.itemsize for weight in packed), default=0)
        usable = USABLE_SHARE * free_bytes(device)
        return DECODED if self.decoded <= usable else PACKED if self.packed + at_a_time <= usable else LAYERS


def free_bytes(device: torch.device) -> float:
    """The device's free memory; of the host, also what can be freed. Infinite where the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = available_bytes()
    return float("inf") if free is None else float(free)


def _packable(weights: list[tuple[Slot, LogicalWeight]]) -> bool:
    return all(weight.scheme != PLAIN for _, weight in weights)


@dataclass(frozen=True)
class Decoder:
    """Decodes weights into a model's parameters, by another global scale than their own where one is named."""

    model: nn.Module
    checkpoint: Checkpoint
    device: torch.device
    dtype: torch.dtype
    global_scales: Mapping[str, tuple[str, float]]
    packs: bool = False
    """Whether quantized weights stay packed."""
    packed: dict[str, PackedWeight] = field(default_factory=dict)
    """By parameter, to be put in its place once the model is complete."""

    def fill(self, plan: Plan) -> None:
        """Decode all that is planned; raises as `decode`."""
        self.decode(plan, read_ahead([weight for weights in plan.values() for _, weight in weights]))

    def decode(self, plan: Plan, stored: Iterator[tuple[LogicalWeight, dict[str, torch.Tensor]]]) -> None:
        """Decode the next weights of `stored`, which are those of `plan` in its order, into their parameters.

        Raises:
            CorruptCheckpointError: a weight cannot be decoded, does not fit, or holds what is no finite number.
        """
        for name, weights in plan.items():
            if self.packs and _packable(weights):
                self._pack(name, weights, [self._of_model(*next(stored)) for _ in weights])
                continue
            target = torch.empty(self.model.get_parameter(name).shape, dtype=self.dtype, device=self.device)
            finite = []
            for slot, weight in weights:
                place = target if slot.expert is None else target[slot.expert, slot.rows]
                parts = self._of_model(*next(stored))
                finite.append(weight.decode_into(place, parts))
                del parts  # or it stays while the next one is read
            for (_, weight), good in zip(weights, torch.stack(finite).tolist(), strict=True):
                if not good:
                    raise self._not_finite(weight)
            self.put(name, target)

    def _of_model(self, weight: LogicalWeight, parts: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """A weight's parts, with the global scale that it is given in the place of its own."""
        if weight.name not in self.global_scales:
            return parts
        part, scale = self.global_scales[weight.name]
        return {**parts, part: torch.full_like(parts[part], scale)}

    def _pack(self, name: str, weights: list[tuple[Slot, LogicalWeight]], parts: list[dict[str, torch.Tensor]]) -> None:
        """Keep a parameter's parts on the device, after decoding it once to see that it can be; raises as `decode`."""
        shape, places = self.model.get_parameter(name).shape, []
        for (slot, weight), own in zip(weights, parts, strict=True):
            weight.check_shape(own, _rows_of(slot, shape))
            places.append((None if slot.expert is None else (slot.expert, slot.rows), weight))
        packed = PackedWeight(shape, self.dtype, places, parts, self.device)
        decoded = packed.decoded()
        if not all_finite(decoded):
            for slot, weight in weights:
                if not all_finite(decoded if slot.expert is None else decoded[slot.expert, slot.rows]):
                    raise self._not_finite(weight)
        self.packed[name] = packed
        self.empty({name: weights})

    def _not_finite(self, weight: LogicalWeight) -> CorruptCheckpointError:
        return CorruptCheckpointError(
            f"{self.checkpoint.path}: {weight.name}: it holds values that are no finite numbers."
        )

    def empty(self, plan: Plan) -> None:
        """Put a NaN in the place of every parameter of `plan`, of its shape and on its device, without its memory."""
        nothing = torch.full((1,), torch.nan, dtype=self.dtype, device=self.device)
        for name in plan:
            self.put(name, nothing.expand(self.model.get_parameter(name).shape))

    def put(self, name: str, value: torch.Tensor) -> None:
        """Make `value` the parameter of that name."""
        module, _, attribute = name.rpartition(".")
        setattr(self.model.get_submodule(module), attribute, nn.Parameter(value, requires_grad=False))


def _rows_of(slot: Slot, shape: torch.Size) -> tuple[int, ...]:
    """The shape of what belongs into a slot of a parameter of that shape."""
    if slot.expert is None:
        return tuple(shape)
    return (len(range(shape[1])[slot.rows]), *shape[2:])


class StoredLayers:
    """The layers of a model whose weights stay in the checkpoint's files until their turn comes."""

    def __init__(self, decoder: Decoder, plan: Plan) -> None:
        self._decoder = decoder
        self._plans: list[Plan] = []
        self.around: Plan = {}
        """What belongs to no layer."""
        for name, weights in plan.items():
            match = _IN_LAYER.match(name)
            if match is None:
                self.around[name] = weights
                continue
            while len(self._plans) <= int(match["layer"]):
                self._plans.append({})
            self._plans[int(match["layer"])][name] = weights
        for layer in self._plans:
            decoder.empty(layer)

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def stored_bytes(self) -> int:
        """What the largest layer takes in the files."""
        return max(map(_stored_bytes, self._plans), default=0)

    @property
    def decoded_bytes(self) -> int:
        """What the largest layer takes on the device."""
        model, size = self._decoder.model, self._decoder.dtype.itemsize
        return max((sum(model.get_parameter(name).numel() for name in plan) * size for plan in self._plans), default=0)

    def one_by_one(self, first: int = 0) -> Iterator[int]:
        """Each layer's index from `first` on, while its weights are on the device; the next one is read meanwhile.

        Every stored tensor of these layers is read once.

        Raises:
            CorruptCheckpointError: as `load_model`.
        """
        plans = self._plans[first:]
        weights = [weight for plan in plans for of_parameter in plan.values() for _, weight in of_parameter]
        stored = read_ahead(weights, budget=self.stored_bytes)
        for layer, plan in enumerate(plans, first):
            try:
                self._decoder.decode(plan, stored)
                yield layer
            finally:
                self._decoder.empty(plan)


def _stored_bytes(plan: Plan) -> int:
    return sum(weight.stored_bytes for weights in plan.values() for _, weight in weights)
