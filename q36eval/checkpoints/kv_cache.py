"""Keys and values as a quantized KV cache gives them back: rounded where an engine stores them, read unrounded nowhere.

An engine writes a layer's keys (after QK-norm and RoPE) and values into its cache and reads all of them back from
there, in prefill and in decoding. So every token's keys and values pass one round trip before attention, whether there
is a cache (generation) or none (teacher-forced scoring). Only full-attention layers have a KV cache: the recurrent
state of the linear ones stays as it is.

Another dtype is one more entry in `ROUND_TRIPS`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints import turboquant
from q36eval.checkpoints.attention_shape import RECURRENT, attention_shape
from q36eval.checkpoints.names import KV_CACHE_SCALES, canonical, left_out_as
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.schemes import OWN_FILE, quantization_config
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

Scales = Mapping[str, "Tensor"]
"""Calibrated scales of one attention layer by `k` and `v`: one value, or one per key-value head."""
FP8_MAX = 448.0
_SCALE = re.compile(r"(?P<attention>.*\.self_attn)\.(?:[kv]_proj\.)?(?P<which>[kv])_scale")


def fp8_e4m3(x: "Tensor", scale: "Tensor") -> "Tensor":
    """`x` [B, heads, T, D] after division by `scale`, saturating rounding to FP8 E4M3, and multiplication.

    Computed in float32 and rounded once to the dtype of `x`, which holds every E4M3 value exactly.
    """
    import torch

    stored = (x.float() / scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return stored.float().mul_(scale).to(x.dtype)


Trip = Callable[["Tensor", "Tensor"], "Tensor"]
"""What storing and loading does to [B, heads, T, D] under a scale that broadcasts against it."""


@dataclass(frozen=True)
class RoundTrip:
    """A dtype's keys and values, whether it has calibrated scales, and for which heads it exists."""

    keys: Trip
    values: Trip
    scaled: bool = False
    fits: Callable[[int], bool] = lambda head_dim: True


def _turboquant(preset: str) -> RoundTrip:
    key_bits, value_bits = turboquant.PRESETS[preset]
    rotated: Trip = lambda x, one: turboquant.round_trip_keys(x, key_bits)  # noqa: E731  # a scale is not read
    return RoundTrip(
        keys=fp8_e4m3 if key_bits == 8 else rotated,
        values=lambda x, one: turboquant.round_trip_values(x, value_bits),
        fits=partial(turboquant.fits, preset),
    )


ROUND_TRIPS: dict[str, RoundTrip | None] = {
    "auto": None,
    "fp8_e4m3": RoundTrip(fp8_e4m3, fp8_e4m3, scaled=True),
    **{preset: _turboquant(preset) for preset in turboquant.PRESETS},
}
"""By vLLM's name for the dtype; `auto` stores keys and values in the model's own."""
KV_CACHE_DTYPES = tuple(ROUND_TRIPS)


def check_kv_cache_dtype(dtype: str) -> None:
    """Refuse a dtype that is not emulated.

    Raises:
        UsageError: no such round trip.
    """
    if dtype not in ROUND_TRIPS:
        raise UsageError(
            "kv-cache-unsupported",
            f"A KV cache of dtype {dtype!r} is not emulated; known: {', '.join(KV_CACHE_DTYPES)}.",
        )


def declared_kv_cache_dtype(checkpoint: Checkpoint) -> str:
    """What either file of the checkpoint's configuration asks an engine to store keys and values in; `auto` when none
    says.

    Raises:
        UsageError: it declares a kind of KV cache that is not emulated.
    """
    config = quantization_config(checkpoint)
    declared = config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo") or _declared_beside(checkpoint)
    if not declared:
        return "auto"
    if isinstance(declared, dict):
        known = declared.get("num_bits") == 8 and declared.get("type") == "float" and not declared.get("dynamic")
        known = known and declared.get("strategy", "tensor") in ("tensor", "attn_head")
    else:
        known = declared == "FP8"
    if not known:
        raise UsageError(
            "kv-cache-unsupported",
            f"{checkpoint.path} declares a KV cache ({declared}) that is not emulated; "
            f"name the one that is served with --kv-cache-dtype ({', '.join(KV_CACHE_DTYPES)}).",
        )
    return "fp8_e4m3"


def _declared_beside(checkpoint: Checkpoint) -> Any:
    """What Model Optimizer's own file alone says: some engines read that one, and the worse of the two is judged."""
    if OWN_FILE not in checkpoint.held:
        return None
    with suppress(CorruptCheckpointError):
        own = checkpoint.held.json(OWN_FILE).get("quantization")
        return own.get("kv_cache_quant_algo") if isinstance(own, dict) else None
    return None


def kv_cache_scales(checkpoint: Checkpoint) -> dict[str, dict[str, "Tensor"]]:
    """Calibrated scales by canonical name of the attention module; a layer without any has unit scales.

    Raises:
        CorruptCheckpointError: a scale is stored twice or is not positive.
    """
    scales: dict[str, dict[str, Tensor]] = {}
    for stored in checkpoint.tensors:
        match = _SCALE.fullmatch(stored)
        if match is None or left_out_as(stored) != KV_CACHE_SCALES:  # a multi-token-prediction head has its own
            continue
        scale = checkpoint.read(stored).float()
        if not bool(((scale > 0) & scale.isfinite()).all()):
            raise CorruptCheckpointError("scale-invalid", f"{checkpoint.path}: {stored} is not positive.")
        layer = scales.setdefault(canonical(match["attention"]), {})
        if match["which"] in layer:
            raise CorruptCheckpointError("tensor-duplicate", f"{checkpoint.path}: {stored} is stored twice.")
        layer[match["which"]] = scale
    return scales


STORED, IGNORED = "stored", "ignored"
KV_SCALES = (STORED, IGNORED)
"""Which scales an engine uses: those of the checkpoint, or 1 for all."""


def check_kv_scales(which: str | None) -> None:
    """Refuse a use of scales that is not known.

    Raises:
        UsageError: it is none of `KV_SCALES`.
    """
    if which is not None and which not in KV_SCALES:
        raise UsageError("option-value", f"Scales of a KV cache are {' or '.join(KV_SCALES)}, not {which!r}.")


def scales_matter(checkpoint: Checkpoint, dtype: str) -> bool:
    """Whether an engine that ignores the stored scales computes otherwise: the cache is quantized, a scale is not 1.

    Raises:
        CorruptCheckpointError: a scale is stored twice or is not positive.
    """
    round_trip = ROUND_TRIPS.get(dtype)
    if round_trip is None or not round_trip.scaled:
        return False
    return any(bool((scale != 1).any()) for layer in kv_cache_scales(checkpoint).values() for scale in layer.values())


def use_scales(model: "nn.Module", which: str | None) -> None:
    """From here on every quantized cache of the model has those scales; with None it is not quantized at all."""
    for module in model.modules():
        if hasattr(module, _USED):
            setattr(module, _USED, which)


@contextmanager
def caches_as_they_are(model: "nn.Module") -> Iterator[None]:
    """Until the block ends, no cache is quantized."""
    used = {module: getattr(module, _USED) for module in model.modules() if hasattr(module, _USED)}
    use_scales(model, None)
    try:
        yield
    finally:
        for module, which in used.items():
            setattr(module, _USED, which)


def updates(model: "nn.Module") -> list[int]:
    """How often each quantized cache of the model has taken keys and values so far."""
    return [getattr(module, _UPDATES) for module in model.modules() if hasattr(module, _UPDATES)]


_USED, _UPDATES = "kv_cache_scales_used", "kv_cache_updates"


def install(model: "nn.Module", dtype: str, scales: Mapping[str, Scales], used: str = STORED) -> int:
    """Give every full-attention layer a cache of `dtype`; returns how many layers that are. `used` is of `KV_SCALES`.

    The scales become buffers of the layer, named by the dtype: they go where its weights go, and a layer that stores
    its keys and values otherwise is seen to differ.

    Raises:
        UsageError: a dtype that is not emulated, or not for heads of this size.
        CorruptCheckpointError: scales that belong to no attention layer or do not fit its heads.
    """
    check_kv_cache_dtype(dtype)
    round_trip = ROUND_TRIPS[dtype]
    layers = _attention_layers(model)
    strays = sorted(set(scales) - set(layers))
    if strays:
        raise CorruptCheckpointError(
            "kv-scale-unexpected", f"KV-cache scales are stored for {strays[0]}, which has no KV cache."
        )
    if round_trip is None:
        return 0
    if not layers or getattr(model.config, "kv_lora_rank", None):
        raise UsageError(
            "kv-cache-unsupported",
            f"A KV cache of dtype {dtype!r} is not emulated for {type(model).__name__}, whose attention has latent "
            f"keys and values or takes no cache that is known here.",
        )
    _, heads, width, _ = attention_shape(model.config)
    for name, attention in layers.items():
        head_dim = int(getattr(attention, "head_dim", width))
        if not round_trip.fits(head_dim):
            raise UsageError(
                "kv-cache-unsupported",
                f"A KV cache of dtype {dtype!r} is not emulated for heads of {head_dim} dimensions: "
                f"its rotation exists for powers of two.",
            )
        calibrated = scales.get(name, {}) if round_trip.scaled else {}
        fitted = {which: _fit(name, which, calibrated.get(which), heads, attention) for which in "kv"}
        for which, scale in fitted.items():
            attention.register_buffer(_buffer(dtype, which), scale, persistent=False)
        setattr(attention, _USED, used)
        setattr(attention, _UPDATES, 0)
        attention.register_forward_pre_hook(_hook(dtype, round_trip), with_kwargs=True)
    return len(layers)


def _attention_layers(model: "nn.Module") -> "dict[str, nn.Module]":
    """The modules that read and write keys and values, by the cache that they take."""
    config: Any = model.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    takers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(layer := getattr(module, "layer_idx", None), int)
        and kinds[layer] not in RECURRENT
        and "past_key_values" in signature(module.forward).parameters
    }
    return {name: taker for name, taker in takers.items() if not any(each.startswith(f"{name}.") for each in takers)}


def _fit(name: str, which: str, scale: "Tensor | None", heads: int, attention: "nn.Module") -> "Tensor":
    """The scale as [1, 1, 1, 1] or [1, heads, 1, 1] on the layer's device."""
    import torch

    if scale is None:
        scale = torch.ones(1)
    if scale.numel() not in (1, heads):
        raise CorruptCheckpointError(
            "tensor-shape", f"{name}.{which}_scale has shape {tuple(scale.shape)} for {heads} heads."
        )
    return scale.reshape(1, -1, 1, 1).to(next(attention.parameters()).device)


def _buffer(dtype: str, which: str) -> str:
    return f"kv_cache_{dtype}_{which}_scale"


def _hook(dtype: str, round_trip: RoundTrip) -> Any:
    """A forward pre-hook that puts a `RoundTrippedCache` in the place of the layer's cache."""
    import torch

    def replace(module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        used = getattr(module, _USED)
        if used is None:
            return args, kwargs
        k_scale, v_scale = (module.get_buffer(_buffer(dtype, which)) for which in "kv")
        if used == IGNORED:
            k_scale, v_scale = torch.ones_like(k_scale), torch.ones_like(v_scale)
        cache = RoundTrippedCache(module, round_trip, k_scale, v_scale, kwargs.get("past_key_values"))
        return args, kwargs | {"past_key_values": cache}

    return replace


class RoundTrippedCache:
    """What attention sees for one forward pass: keys and values pass the round trip, then enter the real cache, if any.

    transformers' attention calls `update` after QK-norm and RoPE, and attends to what it returns.
    """

    def __init__(
        self, module: "nn.Module", round_trip: RoundTrip, k_scale: "Tensor", v_scale: "Tensor", cache: Any
    ) -> None:
        self._module, self._round_trip, self._cache = module, round_trip, cache
        self._k_scale, self._v_scale = k_scale, v_scale

    def update(self, keys: "Tensor", values: "Tensor", *args: Any, **kwargs: Any) -> "tuple[Tensor, Tensor]":
        """The keys and values to attend to, [B, heads, T, D] each, with those of earlier tokens before them."""
        setattr(self._module, _UPDATES, getattr(self._module, _UPDATES) + 1)
        keys = self._round_trip.keys(keys, self._k_scale)
        values = self._round_trip.values(values, self._v_scale)
        if self._cache is None:
            return keys, values
        stored: tuple[Tensor, Tensor] = self._cache.update(keys, values, *args, **kwargs)
        return stored
