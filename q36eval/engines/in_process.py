"""The engine `in-process`: a checkpoint decoded exactly into a model in this process, and its identity."""

import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from transformers.utils import logging

from q36eval.checkpoints import (
    LoadedModel,
    chat_template_sha256,
    checkpoint_sha256,
    load_model,
    load_tokenizer,
    open_checkpoint,
    tokenizer_sha256,
)
from q36eval.checkpoints.draft import draft_bytes, load_draft_head
from q36eval.checkpoints.gpu import has_triton
from q36eval.checkpoints.kv_cache import check_kv_cache_dtype, check_kv_scales, declared_kv_cache_dtype
from q36eval.checkpoints.loader import planned_model
from q36eval.checkpoints.open_checkpoints import hold, opened_once
from q36eval.checkpoints.open_files import HeldFolder
from q36eval.checkpoints.placements import LAYERS, check_placement
from q36eval.checkpoints.reader import one_line
from q36eval.checkpoints.state_dtypes import check_state_dtype
from q36eval.engines import cpu_products, grown_steps
from q36eval.engines.abilities import tried
from q36eval.engines.base import IN_PROCESS, EngineSettings, Perturbation
from q36eval.engines.device_memory import costs_on, room_before
from q36eval.engines.layer_by_layer import LayerByLayerEngine
from q36eval.engines.memory_plan import MemoryPlan, plan_memory
from q36eval.engines.numerics import NUMERICS_VERSION
from q36eval.engines.perturbation import perturbations
from q36eval.engines.qwen3_5_moe import fused_layers
from q36eval.engines.resident import ResidentEngine, workers_of
from q36eval.errors import CorruptCheckpointError, EngineError, Q36Error, UsageError
from q36eval.memory import reuse_freed_memory
from q36eval.records import DeploymentIdentity

KERNEL_PACKAGES = ("flash-linear-attention", "causal-conv1d", "kernels")
"""If installed, transformers computes Gated DeltaNet with them, which changes the numbers."""

TRACED = ("kv_scales", "recurrent_state_dtype", "conv_state_dtype", "batch_rows")
"""Options that appear in the identity's settings if set."""


def _kernels(device: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Kernels other than torch's own for a model of that config; empty for Qwen on most CPUs."""
    if device != "cpu":
        return {"kernels": _kernel_packages()}
    kinds = {part.get("model_type") for part in (config, config.get("text_config")) if isinstance(part, dict)}
    used = [cpu_products.NAME] if cpu_products.needed(device) else []
    used += [] if kinds & {*fused_layers.MODEL_TYPES} else [grown_steps.NAME]
    return {"kernels": ", ".join(used)} if used else {}


def _kernel_packages() -> str:
    """Our own kernels and the optional ones that transformers finds here, with their versions."""
    installed = [f"q36eval {fused_layers.VERSION}"] if has_triton() else []
    for name in KERNEL_PACKAGES:
        with suppress(PackageNotFoundError):
            installed.append(f"{name} {version(name)}")
    return ", ".join(installed) or "none"


def _check_kernels(device: str) -> None:
    """Refuse a CPU on which transformers would use kernels that run only on a GPU.

    Raises:
        UsageError: flash-linear-attention can be imported, which transformers then prefers on every device.
    """
    if device != "cpu" or find_spec("fla") is None:
        return
    try:
        import fla  # type: ignore[import-not-found]  # noqa: F401
    except Exception:  # without its own dependencies (Triton, a driver) transformers treats it as absent, too
        return
    raise UsageError(
        "kernels-need-gpu",
        "flash-linear-attention is installed here and its kernels do not run on a CPU: name a GPU with --device, or "
        "use an environment without that package.",
    )


class InProcessEngine(ResidentEngine):
    """A resident model with the identity of the checkpoint and the settings it was loaded by."""

    options = frozenset({"device", "emulate_activations", "kv_cache_dtype", "placement", "workers", "ray", *TRACED})

    @classmethod
    def load(cls, settings: EngineSettings) -> ResidentEngine:
        """Decode the checkpoint strictly and wrap it.

        Raises:
            UsageError: no such folder, or a format that is not decoded.
            CorruptCheckpointError: a tensor is missing, unexpected, used twice or of the wrong shape, or a file of the
                checkpoint cannot be read.
            EngineError: it does not fit into memory, or a file cannot be read.
            ChangedError: a file changed while it was loaded.
        """
        _check_values(settings)
        _check_kernels(settings.device)
        logging.set_verbosity_error()  # its hints about optional kernels are irrelevant for a gate's user
        if settings.device == "cpu":
            reuse_freed_memory()
        with opened_once():
            held = hold(settings.folder)
            with held.being_read():
                loaded, tokenizer = _loaded(held, settings)
            settings = replace(settings, kv_cache_dtype=loaded.report.kv_cache_dtype)
            identity, rows = cls.identity_of(settings), settings.batch_rows
            engine: ResidentEngine
            if loaded.layers is None:
                engine = cls(loaded.model, tokenizer, identity, batch_rows=rows)
                engine.abilities = tried(loaded.model)
            else:
                engine = LayerByLayerEngine(
                    loaded.model, tokenizer, identity, layers=loaded.layers, held=held, batch_rows=rows
                )
            engine.draft_head = _draft_head(loaded, settings)
            held.check()  # so that the identity describes the loaded bytes
        engine.ignores_activation_quantization = loaded.report.ignored_inputs > 0
        return engine

    @classmethod
    def planned(cls, settings: EngineSettings) -> MemoryPlan:
        """From the shapes in its files and the memory that is free now.

        Raises:
            UsageError: no such folder, an unknown placement, or a format that is not decoded.
            CorruptCheckpointError: a tensor is missing or unexpected.
        """
        _check_kernels(settings.device)
        logging.set_verbosity_error()
        device = torch.device(settings.device)
        model = planned_model(
            settings.folder,
            device=settings.device,
            emulate_activations=settings.emulate_activations,
            placement=settings.placement,
        )
        processes = workers_of(device, model.sizes.decoded)
        dtype = model.config.dtype
        room = room_before(device, model.placement, model.sizes, draft_bytes(model.checkpoint, dtype), processes)
        by_layers = model.placement == LAYERS
        costs = costs_on(model.config, device, dtype.itemsize, model.emulated, one_layer=by_layers)
        return plan_memory(costs, room, settings.batch_rows)

    @classmethod
    def identity_of(cls, settings: EngineSettings) -> DeploymentIdentity:
        """From the files, the settings and the version of our numbers.

        Raises:
            UsageError: a KV cache that is not emulated.
        """
        _check_values(settings)
        folder, device, kv_cache_dtype = hold(settings.folder), settings.device, settings.kv_cache_dtype
        if kv_cache_dtype is None:
            kv_cache_dtype = declared_kv_cache_dtype(open_checkpoint(folder))
        check_kv_cache_dtype(kv_cache_dtype)
        return DeploymentIdentity(
            checkpoint_sha256=checkpoint_sha256(folder),
            tokenizer_sha256=tokenizer_sha256(folder),
            chat_template_sha256=chat_template_sha256(folder),
            engine=IN_PROCESS,
            engine_version=f"transformers {transformers.__version__}, torch {torch.__version__}",
            settings={
                "device": device if device == "cpu" else torch.cuda.get_device_name(device),
                "machine": platform.machine(),
                "dtype": "bfloat16",
                "activation_emulation": "on" if settings.emulate_activations else "off",
                **_kernels(device, open_checkpoint(folder).config),
                **{name: str(getattr(settings, name)) for name in TRACED if getattr(settings, name) is not None},
                "numerics": str(NUMERICS_VERSION),
            },
            kv_cache_dtype=kv_cache_dtype,
        )

    def perturbations(self) -> Sequence[Perturbation]:
        return perturbations(self)


def _loaded(held: HeldFolder, settings: EngineSettings) -> tuple[LoadedModel, Any]:
    """Model and tokenizer; raises as `InProcessEngine.load`."""
    try:
        loaded = load_model(
            held,
            device=settings.device,
            emulate_activations=settings.emulate_activations,
            kv_cache_dtype=settings.kv_cache_dtype,
            kv_scales=settings.kv_scales,
            recurrent_state_dtype=settings.recurrent_state_dtype,
            conv_state_dtype=settings.conv_state_dtype,
            placement=settings.placement,
        )
    except Q36Error:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise EngineError(
            "memory-insufficient", f"{settings.folder} does not fit into the memory of {settings.device}."
        ) from error
    except Exception as error:  # any library error from its files means that the checkpoint cannot be loaded
        raise CorruptCheckpointError(
            "model-not-built", f"{settings.folder} cannot be built: {one_line(error)}."
        ) from error
    return loaded, load_tokenizer(held)


def _draft_head(loaded: LoadedModel, settings: EngineSettings) -> Any:
    """The draft head; None if it does not exist or cannot be loaded: the model works without it."""
    with suppress(UsageError, CorruptCheckpointError):
        device = torch.device(settings.device)
        return load_draft_head(loaded.checkpoint, device, torch.bfloat16, settings.emulate_activations)
    return None


def _check_values(settings: EngineSettings) -> None:
    """Refuse invalid option values."""
    check_placement(settings.placement)
    check_kv_scales(settings.kv_scales)
    check_state_dtype(settings.recurrent_state_dtype)
    check_state_dtype(settings.conv_state_dtype)
