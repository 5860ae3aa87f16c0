"""Build the transformers model of a checkpoint with decoded weights, every stored tensor used exactly once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from q36eval.checkpoints import delta_states, emulation, kv_cache
from q36eval.checkpoints.architecture import Architecture, Outline
from q36eval.checkpoints.formats import ActivationScheme
from q36eval.checkpoints.kv_cache import declared_kv_cache_dtype, kv_cache_scales
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.packed import pack
from q36eval.checkpoints.placements import DECODED, LAYERS, PACKED, check_placement
from q36eval.checkpoints.reader import Checkpoint, open_checkpoint
from q36eval.checkpoints.weight_slots import Decoder, Sizes, StoredLayers, places_in, plan_of, stacked
from q36eval.checkpoints.weights import LogicalWeight, WeightIndex, index_weights
from q36eval.errors import UsageError


@dataclass(frozen=True)
class LoadReport:
    """What a load found.

    `ignored_inputs` counts the modules whose activation quantization was switched off; `kv_cache_dtype` is what keys
    and values are stored in, as emulated.
    """

    ignored_inputs: int = 0
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True)
class LoadedModel:
    """A transformers model in eval mode with decoded weights, and how it came about."""

    model: Any
    report: LoadReport
    checkpoint: Checkpoint
    layers: StoredLayers | None = None
    """Where only what stands before and after the layers was decoded: the layers, to be decoded one at a time."""


def load_model(
    path: str | Path | HeldFolder,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    emulate_activations: bool = True,
    kv_cache_dtype: str | None = None,
    kv_scales: str | None = None,
    recurrent_state_dtype: str | None = None,
    conv_state_dtype: str | None = None,
    placement: str | None = DECODED,
) -> LoadedModel:
    """Decode a checkpoint folder into the causal model of its architecture.

    `kv_cache_dtype` is one of `q36eval.checkpoints.kv_cache.KV_CACHE_DTYPES`; None takes what the checkpoint declares.
    `kv_scales` is one of `q36eval.checkpoints.kv_cache.KV_SCALES`; None takes those that are stored. The state dtypes
    are of `q36eval.checkpoints.state_dtypes.STATE_DTYPES`; None keeps the recurrent state in float32 and that of the
    convolution in the model's dtype. `placement` is one of `q36eval.checkpoints.placements.PLACEMENTS`; None takes the
    first that fits into the device's free memory.

    Raises:
        UsageError: no checkpoint there, another architecture, or a quantization that is not decoded or emulated.
        CorruptCheckpointError: a tensor is missing, unexpected, used twice, of the wrong shape, or cannot be decoded.
    """
    check_placement(placement)
    kv_cache.check_kv_scales(kv_scales)
    checkpoint = open_checkpoint(path)
    architecture = Architecture.of(checkpoint)
    index = index_weights(checkpoint)
    model = _empty_model(architecture, checkpoint, dtype)
    outline = Outline(model)
    cache_dtype = kv_cache_dtype or declared_kv_cache_dtype(checkpoint)
    cache_scales = kv_cache_scales(checkpoint)
    schemes = input_schemes(index) if emulate_activations else {}
    ignored = 0 if emulate_activations else _count_quantized_inputs(index)
    plan = plan_of(outline, checkpoint, index)
    placement = placement or Sizes.of(plan, outline, dtype).first_that_fits(torch.device(device))
    decoder = Decoder(model, outline, checkpoint, torch.device(device), dtype, placement == PACKED)
    stacks = stacked(plan)
    layers = StoredLayers(decoder, stacks) if placement == LAYERS else None
    decoder.fill(stacks if layers is None else layers.around)
    model.tie_weights()
    compute_buffers(model, torch.device(device))
    emulation.install(model, schemes, places_in(plan))
    kv_cache.install(model, cache_dtype, cache_scales, kv_scales or kv_cache.STORED)
    delta_states.install(model, recurrent_state_dtype, conv_state_dtype)
    pack(model, decoder.packed)
    model.eval().requires_grad_(False)
    return LoadedModel(model, LoadReport(ignored, cache_dtype), checkpoint, layers)


@dataclass(frozen=True)
class Planned:
    """What `load_model` would give, known without reading any weights."""

    config: Any
    sizes: Sizes
    placement: str
    emulated: bool
    """Whether inputs of modules are quantized."""
    checkpoint: Checkpoint


def planned_model(
    path: str | Path | HeldFolder,
    *,
    device: str = "cpu",
    emulate_activations: bool = True,
    placement: str | None = None,
) -> Planned:
    """The shapes and sizes of a checkpoint's model, and where its weights would lie; raises as `load_model`."""
    check_placement(placement)
    checkpoint = open_checkpoint(path)
    architecture = Architecture.of(checkpoint)
    index = index_weights(checkpoint)
    outline = Outline(architecture.empty(torch.bfloat16))
    sizes = Sizes.of(plan_of(outline, checkpoint, index), outline, torch.bfloat16)
    emulated = emulate_activations and bool(input_schemes(index))
    return Planned(
        outline.model.config, sizes, placement or sizes.first_that_fits(torch.device(device)), emulated, checkpoint
    )


def _empty_model(architecture: Architecture, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The model on the meta device, with the checkpoint's settings of generation."""
    from transformers import GenerationConfig

    model = architecture.empty(dtype)
    if "generation_config.json" in checkpoint.held:
        with checkpoint.held.small_files() as place:
            model.generation_config = GenerationConfig.from_pretrained(place, local_files_only=True)
    return model


def input_schemes(index: WeightIndex) -> dict[str, ActivationScheme]:
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


def compute_buffers(model: Any, device: torch.device) -> None:
    """Compute the buffers that no checkpoint stores (rotary frequencies), as transformers does after it has loaded.

    Raises:
        UsageError: a module whose buffers transformers does not compute.
    """
    for value in (*model.parameters(), *model.state_dict(keep_vars=True).values()):
        value._is_hf_initialized = True  # or it would be initialized again
    for name, module in list(model.named_modules()):
        own = {key: buffer for key, buffer in module.named_buffers(recurse=False) if buffer.is_meta}
        if not own:
            continue
        for key, buffer in own.items():
            module._buffers[key] = torch.full_like(buffer, -1, device=device)
        before = {key: module._buffers[key].clone() for key in own}
        model._init_weights(module)
        if any(torch.equal(module._buffers[key], before[key]) for key in own):
            raise UsageError(
                "architecture-unsupported",
                f"{name} has buffers that no checkpoint stores and that cannot be computed.",
            )
