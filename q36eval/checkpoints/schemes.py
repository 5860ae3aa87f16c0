"""How a checkpoint's configuration says each module is quantized."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.checkpoints.names import canonical, module_type
from q36eval.checkpoints.reader import Checkpoint, read_json
from q36eval.errors import CorruptCheckpointError, UsageError


@dataclass(frozen=True)
class Scheme:
    """How one weight is stored, and how its module's input is quantized before use.

    `compressed` is the compressed-tensors `QuantizationScheme` where there is one; `settings` holds what the other
    formats need.
    """

    format: str
    compressed: Any = None
    settings: tuple[tuple[str, Any], ...] = ()

    def setting(self, name: str) -> Any:
        """One entry of `settings`, None when absent."""
        return dict(self.settings).get(name)


PLAIN = Scheme("plain")
SchemeOf = Callable[[str, frozenset[str]], Scheme]
"""Maps a stored module name and the parts stored for it to its scheme."""


def scheme_resolver(checkpoint: Checkpoint) -> SchemeOf:
    """Read the quantization configuration, wherever the producer put it.

    Raises:
        UsageError: a quantization method this loader does not decode.
        CorruptCheckpointError: a configuration its own library refuses.
    """
    config = quantization_config(checkpoint)
    method = config.get("quant_method") if config else "none"
    if method == "none":
        return lambda module, parts: PLAIN
    if method == "compressed-tensors":
        return _compressed_tensors(checkpoint.path, config)
    if method == "gptq":
        return _gptq(checkpoint.path, config)
    if method == "modelopt":
        return _modelopt(checkpoint.path, config)
    raise UsageError(
        f"{checkpoint.path}: quantization method {method!r} is not decoded; known: compressed-tensors, gptq, modelopt."
    )


def quantization_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """`quantization_config` of config.json (or of its text part), else Model Optimizer's own file, else empty."""
    text = checkpoint.config.get("text_config") or {}
    found: dict[str, Any] | None = checkpoint.config.get("quantization_config") or text.get("quantization_config")
    if found:
        _refuse_what_is_not_emulated(checkpoint, found)
        return found
    own = checkpoint.path / "hf_quant_config.json"
    if own.is_file():
        quantization = read_json(own).get("quantization", {})
        _refuse_what_is_not_emulated(checkpoint, quantization)
        return {**quantization, "quant_method": "modelopt", "ignore": quantization.get("exclude_modules", [])}
    return {}


NOT_EMULATED = ("kv_cache_scheme", "kv_cache_quant_algo", "transform_config", "sparsity_config")


def _refuse_what_is_not_emulated(checkpoint: Checkpoint, quantization: dict[str, Any]) -> None:
    """A branch that declares what is not emulated would be judged as a better one than is served.

    Raises:
        UsageError: a quantized KV cache, a weight transform or sparsity is declared.
    """
    for key in NOT_EMULATED:
        if quantization.get(key):
            raise UsageError(
                f"{checkpoint.path} declares {key}, which is not emulated yet; judge a copy of the checkpoint "
                f"without that setting, and know that the verdict does not cover it."
            )


def _compressed_tensors(folder: Path, config: dict[str, Any]) -> SchemeOf:
    from compressed_tensors.quantization import QuantizationConfig
    from compressed_tensors.utils.match import match_name

    try:
        parsed = QuantizationConfig.model_validate(config)
    except ValueError as error:
        raise CorruptCheckpointError(f"{folder}/config.json: quantization_config is refused: {error}") from error
    groups = list(parsed.config_groups.values())
    fallback = str(parsed.format)

    def matches(module: str, targets: list[str]) -> bool:
        names = {module, canonical(module)}
        return any(match_name(name, target) for name in names for target in targets)

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        if matches(module, parsed.ignore or []):
            return PLAIN
        chosen = [group for group in groups if matches(module, group.targets)]
        if not chosen:
            chosen = [group for group in groups if module_type(canonical(module)) in group.targets]
        if not chosen or chosen[0].weights is None:
            return PLAIN
        layout = chosen[0].format or fallback
        return Scheme(str(getattr(layout, "value", layout)), compressed=chosen[0])

    return resolve


def _gptq(folder: Path, config: dict[str, Any]) -> SchemeOf:
    bits = config.get("bits")
    if bits not in (2, 4, 8):
        raise UsageError(f"{folder}: GPTQ with {bits} bits is not decoded; known: 2, 4, 8.")
    layout = config.get("checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise UsageError(f"{folder}: GPTQ checkpoint_format {layout!r} is not decoded; known: gptq, gptq_v2.")
    scheme = Scheme("gptq", settings=(("bits", bits), ("zero_offset", 0 if layout == "gptq_v2" else 1)))
    # GPTQ configurations do not list what was quantized: the stored parts say it.
    return lambda module, parts: PLAIN if parts in ({"weight"}, {""}) else scheme


def _modelopt(folder: Path, config: dict[str, Any]) -> SchemeOf:
    if config.get("quant_algo") != "NVFP4":
        raise UsageError(f"{folder}: Model Optimizer's {config.get('quant_algo')!r} is not decoded; known: NVFP4.")
    patterns = list(config.get("ignore") or config.get("exclude_modules") or [])

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        names = {module, canonical(module)}
        excluded = any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)
        if excluded or module_type(canonical(module)) != "Linear":
            return PLAIN
        return Scheme("modelopt-nvfp4")

    return resolve
