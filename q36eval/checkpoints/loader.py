"""Build the transformers model of a checkpoint with decoded weights, every stored tensor used exactly once."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from q36eval.checkpoints import delta_states, emulation, kv_cache
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.fused import check_as_served, scales_as_served
from q36eval.checkpoints.held import HeldFolder
from q36eval.checkpoints.kv_cache import declared_kv_cache_dtype, kv_cache_scales
from q36eval.checkpoints.packed import PackedWeight, pack
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint
from q36eval.checkpoints.scheme import PLAIN
from q36eval.checkpoints.weights import LogicalWeight, WeightIndex, all_finite, index_weights, read_ahead
from q36eval.errors import CorruptCheckpointError, UsageError

TEXT_MODEL_TYPES = ("qwen3_5_moe_text", "qwen3_5_moe")
_EXPERT = re.compile(r"(?P<experts>.*\.mlp\.experts)\.(?P<index>\d+)\.(?P<projection>gate|up|down)_proj\.weight")
WHOLE = "whole"
DECODED, PACKED, LAYERS = "decoded", "packed", "layers"
PLACEMENTS = (DECODED, PACKED, LAYERS)
"""Where weights lie: decoded on the device; on the device as they are stored, decoded when used; or those of the layers
in the files, to be decoded one layer at a time by `LoadedModel.layers`. None changes a number."""
_IN_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.")


@dataclass(frozen=True)
class LoadReport:
    """What a load found.

    `formats` counts logical weights by class of tensor and stored format, `stored_bytes` sums what they take;
    `left_out` names the stored tensors that are no part of the text model, by reason; `quantized_inputs` counts the
    modules whose activation quantization is emulated, `ignored_inputs` those whose quantization was switched off;
    `kv_cache_dtype` is what keys and values are stored in, as emulated; `fused_scales` counts the weights that were
    decoded by another member's global scale, as an engine that fuses them does.
    """

    formats: dict[str, dict[str, int]]
    stored_bytes: dict[str, int]
    left_out: dict[str, tuple[str, ...]]
    quantized_inputs: int = 0
    ignored_inputs: int = 0
    kv_cache_dtype: str = "auto"
    fused_scales: int = 0


_Plan = dict[str, list[tuple["_Slot", LogicalWeight]]]
"""By parameter, which weights it is made of and where each belongs."""


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in eval mode with decoded weights, and how it came about."""

    model: Any
    report: LoadReport
    checkpoint: Checkpoint
    layers: "StoredLayers | None" = None
    """Where only what stands before and after the layers was decoded: the layers, to be decoded one at a time."""


@dataclass(frozen=True)
class _Slot:
    """Part of a parameter: an expert's rows of a fused parameter, or all of it."""

    parameter: str
    key: str = WHOLE
    expert: int | None = None
    rows: slice = field(default_factory=lambda: slice(None))


def load_model(
    path: str | Path | HeldFolder,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    emulate_activations: bool = True,
    kv_cache_dtype: str | None = None,
    as_served: str | None = None,
    kv_scales: str | None = None,
    recurrent_state_dtype: str | None = None,
    conv_state_dtype: str | None = None,
    placement: str | None = DECODED,
) -> LoadedModel:
    """Decode a checkpoint folder into `Qwen3_5MoeForCausalLM`.

    `kv_cache_dtype` is one of `q36eval.checkpoints.kv_cache.KV_CACHE_DTYPES`; None takes what the checkpoint declares.
    `as_served` is one of `q36eval.checkpoints.fused.ENGINES`: weights that it fuses are decoded by the one global scale
    that it gives them; None takes each by its own. `kv_scales` is one of `q36eval.checkpoints.kv_cache.KV_SCALES`; None
    takes those that are stored. The state dtypes are of `q36eval.checkpoints.state_dtypes.STATE_DTYPES`; None keeps the
    recurrent state in float32 and that of the convolution in the model's dtype. `placement` is one of
    `PLACEMENTS`; None takes the first that fits into the device's free memory.

    Raises:
        UsageError: no checkpoint there, another architecture, or a quantization that is not decoded or emulated.
        CorruptCheckpointError: a tensor is missing, unexpected, used twice, of the wrong shape, or cannot be decoded.
    """
    check_as_served(as_served)
    kv_cache.check_kv_scales(kv_scales)
    checkpoint = open_checkpoint(path)
    index = index_weights(checkpoint)
    global_scales = scales_as_served(index.weights) if as_served else {}
    model = _empty_model(checkpoint, dtype)
    cache_dtype = kv_cache_dtype or declared_kv_cache_dtype(checkpoint)
    cache_scales = kv_cache_scales(checkpoint)
    schemes = _input_schemes(index) if emulate_activations else {}
    ignored = 0 if emulate_activations else _count_quantized_inputs(index)
    plan = _plan(model, checkpoint, index)
    placement = placement or _first_that_fits(plan, model, torch.device(device), dtype)
    decoder = _Decoder(model, checkpoint, torch.device(device), dtype, global_scales, placement == PACKED)
    layers = StoredLayers(decoder, plan) if placement == LAYERS else None
    decoder.fill(plan if layers is None else layers.around)
    model.tie_weights()
    _rebuild_buffers(model, torch.device(device))
    emulation.install(model, schemes)
    kv_cache.install(model, cache_dtype, cache_scales, kv_scales or kv_cache.STORED)
    delta_states.install(model, recurrent_state_dtype, conv_state_dtype)
    pack(model, decoder.packed)
    model.eval().requires_grad_(False)
    report = _report(index, len(schemes), ignored, cache_dtype, len(global_scales))
    return LoadedModel(model, report, checkpoint, layers)


def text_config(checkpoint: Checkpoint) -> Any:
    """The transformers configuration of the text model, without its quantization.

    Raises:
        UsageError: another architecture.
    """
    from transformers import Qwen3_5MoeTextConfig

    kind = checkpoint.config.get("model_type")
    if kind not in TEXT_MODEL_TYPES:
        raise UsageError(
            f"{checkpoint.path}: model_type {kind!r} is not judged here; known: {', '.join(TEXT_MODEL_TYPES)}."
        )
    settings = dict(checkpoint.config.get("text_config") or checkpoint.config)
    for quantization in ("quantization_config", "auto_map"):
        settings.pop(quantization, None)
    if checkpoint.config.get("tie_word_embeddings"):
        settings["tie_word_embeddings"] = True
    return Qwen3_5MoeTextConfig.from_dict(settings)


def _empty_model(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The model on the meta device: shapes and dtypes, no memory, no random initialization."""
    from transformers import GenerationConfig, Qwen3_5MoeForCausalLM

    config = text_config(checkpoint)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            model = Qwen3_5MoeForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.config.dtype = dtype
    if "generation_config.json" in checkpoint.held:
        with checkpoint.held.small_files() as place:
            model.generation_config = GenerationConfig.from_pretrained(place, local_files_only=True)
    return model


def _slot(name: str, parameters: dict[str, nn.Parameter]) -> _Slot | None:
    """Where a logical weight belongs, None when the model has no such place."""
    if name in parameters:
        return _Slot(name)
    match = _EXPERT.fullmatch(name)
    if not match:
        return None
    projection, expert = match["projection"], int(match["index"])
    parameter = f"{match['experts']}.{'down_proj' if projection == 'down' else 'gate_up_proj'}"
    if parameter not in parameters or expert >= parameters[parameter].shape[0]:
        return None
    half = parameters[parameter].shape[1] // 2
    rows = {"gate": slice(0, half), "up": slice(half, None), "down": slice(None)}[projection]
    return _Slot(parameter, f"{expert}.{projection}_proj", expert, rows)


def _expected_slots(name: str, parameter: nn.Parameter) -> set[str]:
    if name.endswith(".mlp.experts.gate_up_proj"):
        return {f"{expert}.{half}_proj" for expert in range(parameter.shape[0]) for half in ("gate", "up")}
    if name.endswith(".mlp.experts.down_proj"):
        return {f"{expert}.down_proj" for expert in range(parameter.shape[0])}
    return {WHOLE}


def _plan(model: nn.Module, checkpoint: Checkpoint, index: WeightIndex) -> _Plan:
    """Each parameter's weights, after checking that all of them, and nothing else, are there exactly once."""
    parameters = dict(model.named_parameters())
    plan: _Plan = defaultdict(list)
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


def check_placement(placement: str | None) -> None:
    """Refuse a place for weights that is not known.

    Raises:
        UsageError: it is none of `PLACEMENTS`.
    """
    if placement is not None and placement not in PLACEMENTS:
        raise UsageError(f"Weights lie {', '.join(PLACEMENTS)}, not {placement!r}.")


USABLE_SHARE = 0.85
"""Of the free memory, so much may be taken by weights; the rest is for what is computed with them."""


def _first_that_fits(plan: _Plan, model: nn.Module, device: torch.device, dtype: torch.dtype) -> str:
    """The placement that computes fastest of those whose weights the device has room for."""
    sizes = {name: model.get_parameter(name).numel() * dtype.itemsize for name in plan}
    stays_packed = [name for name, weights in plan.items() if _packable(weights)]
    packed = sum(sizes.values()) - sum(sizes[name] for name in stays_packed)
    packed += sum(_stored_bytes({name: plan[name]}) for name in stays_packed)
    packed += max((sizes[name] for name in stays_packed), default=0)
    usable = USABLE_SHARE * free_bytes(device)
    return DECODED if sum(sizes.values()) <= usable else PACKED if packed <= usable else LAYERS


def free_bytes(device: torch.device) -> float:
    """The device's free memory; of the host, also what can be freed. Infinite where the system does not say."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")), float("inf"))


def _packable(weights: list[tuple[_Slot, LogicalWeight]]) -> bool:
    return all(weight.scheme != PLAIN for _, weight in weights)


@dataclass(frozen=True)
class _Decoder:
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

    def fill(self, plan: _Plan) -> None:
        """Decode all that is planned; raises as `decode`."""
        self.decode(plan, read_ahead([weight for weights in plan.values() for _, weight in weights]))

    def decode(self, plan: _Plan, stored: Iterator[tuple[LogicalWeight, dict[str, torch.Tensor]]]) -> None:
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

    def _pack(
        self, name: str, weights: list[tuple[_Slot, LogicalWeight]], parts: list[dict[str, torch.Tensor]]
    ) -> None:
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

    def empty(self, plan: _Plan) -> None:
        """Put a NaN in the place of every parameter of `plan`, of its shape and on its device, without its memory."""
        nothing = torch.full((1,), torch.nan, dtype=self.dtype, device=self.device)
        for name in plan:
            self.put(name, nothing.expand(self.model.get_parameter(name).shape))

    def put(self, name: str, value: torch.Tensor) -> None:
        """Make `value` the parameter of that name."""
        module, _, attribute = name.rpartition(".")
        setattr(self.model.get_submodule(module), attribute, nn.Parameter(value, requires_grad=False))


def _rows_of(slot: _Slot, shape: torch.Size) -> tuple[int, ...]:
    """The shape of what belongs into a slot of a parameter of that shape."""
    if slot.expert is None:
        return tuple(shape)
    return (len(range(shape[1])[slot.rows]), *shape[2:])


class StoredLayers:
    """The layers of a model whose weights stay in the checkpoint's files until their turn comes."""

    def __init__(self, decoder: _Decoder, plan: _Plan) -> None:
        self._decoder = decoder
        self._plans: list[_Plan] = []
        self.around: _Plan = {}
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


def _stored_bytes(plan: _Plan) -> int:
    return sum(weight.stored_bytes for weights in plan.values() for _, weight in weights)


def _input_schemes(index: WeightIndex) -> dict[str, ActivationScheme]:
    """The quantization of every module's input, by module.

    Raises:
        UsageError: one is of a kind that is not emulated.
    """
    schemes = {weight.name.removesuffix(".weight"): weight.activations() for weight in index.weights.values()}
    return {name: scheme for name, scheme in schemes.items() if scheme is not None}


def _count_quantized_inputs(index: WeightIndex) -> int:
    """How many modules quantize their inputs, also in kinds that are not emulated."""

    def quantizes(weight: LogicalWeight) -> bool:
        try:
            return weight.activations() is not None
        except UsageError:
            return True

    return sum(quantizes(weight) for weight in index.weights.values())


def _rebuild_buffers(model: Any, device: torch.device) -> None:
    """Compute the buffers that no checkpoint stores (rotary frequencies) anew: on the meta device they have no values.

    Raises:
        UsageError: a module whose buffers this loader cannot compute.
    """
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            try:
                rebuilt = type(module)(config=model.config)
            except TypeError as error:
                raise UsageError(
                    f"{name} has buffers that no checkpoint stores and that cannot be computed."
                ) from error
            model.set_submodule(name, rebuilt.to(device))


def _report(index: WeightIndex, used: int, ignored: int, cache_dtype: str, fused_scales: int) -> LoadReport:
    formats: dict[str, Counter[str]] = defaultdict(Counter)
    stored: Counter[str] = Counter()
    for weight in index.weights.values():
        formats[weight.tensor_class][weight.scheme.format] += 1
        stored[weight.tensor_class] += weight.stored_bytes
    by_class = {name: dict(counts) for name, counts in formats.items()}
    return LoadReport(by_class, dict(stored), index.left_out, used, ignored, cache_dtype, fused_scales)
