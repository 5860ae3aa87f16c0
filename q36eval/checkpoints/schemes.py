"""How a checkpoint's configuration says each module is quantized."""

import copy
import fnmatch
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from q36eval.checkpoints.integer_schemes import AUTO_ROUND, auto_round, awq, gptq, signs_scales
from q36eval.checkpoints.names import aliases, beginnings, canonical, endings, fused_experts, part_name, split_part
from q36eval.checkpoints.patterns import matches_pattern
from q36eval.checkpoints.reader import Checkpoint
from q36eval.checkpoints.scheme import (
    FLOATS,
    METHODS,
    PLAIN,
    Scheme,
    SchemeOf,
    TypeOf,
    check_known,
    check_number,
    check_patterns,
    is_glob,
    is_of_model_optimizer,
    listed,
    names_of,
    table,
)
from q36eval.errors import CorruptCheckpointError, UsageError

if TYPE_CHECKING:
    from q36eval.checkpoints.architecture import Outline

OWN_FILE = "hf_quant_config.json"
"""Where Model Optimizer declares its quantization, beside config.json or in its place."""


def scheme_resolver(checkpoint: Checkpoint) -> SchemeOf:
    """Read the quantization configuration, wherever the producer put it.

    Raises:
        UsageError: a quantization method this loader does not decode.
        CorruptCheckpointError: a configuration its own library refuses, or with entries of the wrong kind (also raised
            by the resolver, where an entry is about some modules only).
    """
    with _wrong_kinds_told(checkpoint):
        resolve = _resolver(checkpoint)

    def resolve_named(module: str, parts: frozenset[str]) -> Scheme:
        with _wrong_kinds_told(checkpoint):
            return resolve(module, parts)

    return resolve_named


@contextmanager
def _wrong_kinds_told(checkpoint: Checkpoint) -> Iterator[None]:
    """What a number in the place of a table makes Python raise, told as what it is: a fault of the configuration."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"the quantization configuration has an entry of the wrong kind ({reason})"
        raise CorruptCheckpointError(
            "config-invalid", f"{checkpoint.path}: {message}; correct it or download it again."
        ) from error


def _resolver(checkpoint: Checkpoint) -> SchemeOf:
    if checkpoint.schemes is not None:
        stored = checkpoint.schemes
        return lambda module, parts: stored.get(module, PLAIN)
    config = quantization_config(checkpoint)
    _refuse_what_is_not_emulated(checkpoint, config)
    method = config.get("quant_method") if config else "none"
    module_type = ModuleTypes(checkpoint)
    if method == "none":
        return lambda module, parts: PLAIN
    if method == "compressed-tensors":
        return _compressed_tensors(checkpoint.path, config, module_type)
    if method == "gptq":
        return gptq(checkpoint.path, config)
    if method == "awq":
        return awq(checkpoint.path, config)
    if method == AUTO_ROUND:
        return auto_round(checkpoint.path, config, module_type)
    if method == "modelopt":
        return _modelopt(checkpoint, config, module_type)
    if method == "fp8":
        return _fine_grained_fp8(checkpoint, config, module_type)
    if method == "mxfp4":
        return _mxfp4(checkpoint.path, config)
    raise UsageError(
        "scheme-unsupported",
        f"{checkpoint.path}: quantization method {method!r} is not decoded; known: {', '.join(METHODS)}.",
    )


def quantization_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """`quantization_config` of config.json (or of its text part), else Model Optimizer's own file, else empty.

    Raises:
        CorruptCheckpointError: it is no table.
    """
    config = checkpoint.path / "config.json"
    text = table(config, "text_config", checkpoint.config.get("text_config") or {})
    given = checkpoint.config.get("quantization_config") or text.get("quantization_config")
    if not given:
        return _of_model_optimizer(own_quantization(checkpoint)) if OWN_FILE in checkpoint.held else {}
    quantization = table(config, "quantization_config", given)
    if not is_of_model_optimizer(quantization):
        return quantization
    nested = quantization.get("quantization")
    settings = _of_model_optimizer(quantization | (nested if isinstance(nested, dict) else {}))
    if _is_mixed(settings) and not settings.get("quantized_layers") and OWN_FILE in checkpoint.held:
        settings["quantized_layers"] = own_quantization(checkpoint).get("quantized_layers")
    return settings


def own_quantization(checkpoint: Checkpoint) -> dict[str, Any]:
    """What Model Optimizer's own file declares, under `quantization` or at its top.

    Raises:
        CorruptCheckpointError: it is no table.
    """
    content = checkpoint.held.json(OWN_FILE)
    at_top = content if "quant_algo" in content else {}
    return table(checkpoint.path / OWN_FILE, "quantization", content.get("quantization", at_top))


def _of_model_optimizer(given: dict[str, Any]) -> dict[str, Any]:
    """The settings with the keys that config.json has."""
    excluded = given.get("ignore") or given.get("exclude_modules") or []
    return {**given, "quant_method": "modelopt", "ignore": excluded}


def _is_mixed(config: dict[str, Any]) -> bool:
    return str(config.get("quant_algo")).upper() == "MIXED_PRECISION"


class ModuleTypes:
    """The torch class (`Linear`, `Embedding`, or empty) of a checkpoint's modules by stored name.

    The model is outlined when the first class is asked for: most recipes name modules. A draft head's layers count as
    the model's.

    Raises:
        UsageError: as `Architecture.of`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @cached_property
    def _outline(self) -> "Outline":
        from q36eval.checkpoints.architecture import Architecture

        return Architecture.of(self._checkpoint).outline

    def __call__(self, module: str) -> str:
        return self._outline.module_type(_IN_DRAFT.sub("model.", canonical(module)))

    def loaded_name(self, module: str) -> str:
        """What transformers' model calls a module; of an expert in a stack, its own name."""
        return self._outline.loaded_name(canonical(module))


_IN_DRAFT = re.compile(r"^(model\.)?mtp\.")
NOT_EMULATED = ("transform_config", "sparsity_config")


def _refuse_what_is_not_emulated(checkpoint: Checkpoint, quantization: dict[str, Any]) -> None:
    """A branch that declares what is not emulated would be judged as a better one than is served.

    Raises:
        UsageError: a weight transform or sparsity is declared.
    """
    for key in NOT_EMULATED:
        if quantization.get(key):
            raise UsageError(
                "setting-unsupported",
                f"{checkpoint.path} declares {key}, which is not emulated yet; judge a copy of the checkpoint "
                f"without that setting, and know that the verdict does not cover it.",
            )


def _compressed_tensors(folder: Path, config: dict[str, Any], module_type: "ModuleTypes") -> SchemeOf:
    # The library no longer reads `actorder: group`, under which older checkpoints store their `weight_g_idx`.
    groups_given = table(folder / "config.json", "config_groups", config.get("config_groups") or {})
    weights_given = {name: group.get("weights") for name, group in groups_given.items() if isinstance(group, dict)}
    ordered = [name for name, of in weights_given.items() if isinstance(of, dict) and of.get("actorder") == "group"]
    current = copy.deepcopy(config)
    for name in ordered:
        current["config_groups"][name]["weights"]["actorder"] = None
    parsed = _as_the_library_reads(folder, current)
    groups = list(parsed.config_groups.values())
    ignored, targeted = listed(parsed.ignore or []), [listed(group.targets) for group in groups]
    check_patterns(folder, [pattern for _, patterns in (ignored, *targeted) for pattern in patterns])
    needs_order = [parsed.config_groups[name] for name in ordered]

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        names = names_of(module)
        if _is_among(names, *ignored):
            return PLAIN
        scheme, is_plain = targeted_scheme(module, names), parts <= {"weight", ""}
        if (scheme is PLAIN) == is_plain:
            return scheme
        # the producer may have called it as transformers' model does, or as within a multimodal one
        loaded = {module_type.loaded_name(module), *aliases(module)}
        if is_plain:
            return PLAIN if _is_among(loaded, *ignored) else scheme
        return targeted_scheme(module, loaded)

    def targeted_scheme(module: str, names: set[str]) -> Scheme:
        chosen = [group for group, targets in zip(groups, targeted, strict=True) if _is_among(names, *targets)]
        if not chosen:
            chosen = [group for group in groups if module_type(module) in group.targets]
        if not chosen or chosen[0].weights is None:
            return PLAIN
        settings = {"needs_g_idx": True} if any(chosen[0] is group for group in needs_order) else {}
        settings |= {"signed_scales": True} if signs_scales(config) else {}
        return Scheme(_layout(chosen[0], str(parsed.format)), compressed=chosen[0], settings=tuple(settings.items()))

    return resolve


def _as_the_library_reads(folder: Path, config: dict[str, Any]) -> Any:
    from compressed_tensors.quantization import QuantizationConfig

    try:
        return QuantizationConfig.model_validate(config)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise CorruptCheckpointError(
            "config-invalid", f"{folder}/config.json: quantization_config is refused: {reason}"
        ) from error


def _is_among(names: set[str], listed: frozenset[str], patterns: list[str]) -> bool:
    """Whether a target means one of the names, as `compressed_tensors.utils.match.match_name` has it."""
    return not listed.isdisjoint(names) or any(matches_pattern(pattern, name) for pattern in patterns for name in names)


def _layout(group: Any, fallback: str) -> str:
    """The stored format of a group, as its producer would have chosen it where a mixed configuration leaves it out."""
    layout = group.format or fallback
    if layout in ("mixed-precision", "fakequant"):  # the latter where the file names none
        from compressed_tensors.compressors.format import infer_module_format
        from torch.nn import Linear

        layout = infer_module_format(Linear, group)
    return str(getattr(layout, "value", layout))


_MODELOPT: dict[str, Scheme] = {
    "NVFP4": Scheme("modelopt-nvfp4", settings=(("inputs", "local"),)),
    "W4A16_NVFP4": Scheme("modelopt-nvfp4"),
    "FP8": Scheme("modelopt-fp8", settings=(("inputs", "tensor"),)),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("modelopt-fp8", settings=(("inputs", "token"), ("per_channel", True))),
    "FP8_PB_WO": Scheme("modelopt-fp8", settings=(("block", (128, 128)),)),
    "MXFP4": Scheme("modelopt-mxfp4"),
    "MXFP8": Scheme("modelopt-mxfp8"),
}
"""Model Optimizer's algorithms, by its names for them."""


def _modelopt(checkpoint: Checkpoint, config: dict[str, Any], module_type: TypeOf) -> SchemeOf:
    """By the algorithm, and as stored where that is otherwise: what is excluded and quantized, or neither.

    The groups beside the algorithm are read where a mixed recipe has no map of layers, and to learn whether what is
    called NVFP4 is weight-only. vLLM believes the latter since its PR 54427. Older ones do not, nor does who reads
    `hf_quant_config.json`, which has none: with stored scales these quantize the inputs. So groups are believed only
    where no such scale is stored.
    """
    folder = checkpoint.path
    groups = table(folder / "config.json", "config_groups", config.get("config_groups") or {})
    given = list(config.get("ignore") or [])
    patterns = [pattern for pattern in given if is_glob(pattern)]
    check_number(folder, patterns)
    in_full = frozenset(given) - frozenset(patterns)

    def excluded(names: set[str]) -> bool:
        return not in_full.isdisjoint(names) or any(
            fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns
        )

    stored = (split_part(name) for name in checkpoint.tensors)
    weight_only = (
        str(config.get("quant_algo")).upper() == "NVFP4"
        and leave_inputs(groups)
        and all(group.get("targets") for group in groups.values())
        and not any(part == "input_scale" and not excluded(names_of(module)) for module, part in stored)
    )

    def scheme_of(algorithm: Any) -> Scheme:
        # 0.47 writes some of its names in capitals and some not
        algorithm = algorithm.upper() if isinstance(algorithm, str) else algorithm
        check_known(algorithm, _MODELOPT, folder, f"Model Optimizer's {algorithm!r}")
        if (size := config.get("group_size")) is not None:
            check_known(size, (32 if "MXFP" in algorithm else 16,), folder, f"{algorithm} in groups of {size}")
        return _MODELOPT["W4A16_NVFP4" if weight_only else algorithm]

    layers = (config.get("quantized_layers") or _layers_of(groups)) if _is_mixed(config) else None
    # A checkpoint of which only the KV cache is quantized names no algorithm for its weights.
    only_cache = config.get("quant_algo") is None and (
        config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")
    )
    whole = None if layers is not None else PLAIN if only_cache else scheme_of(config.get("quant_algo"))
    by_layer = {canonical(name): scheme_of(layer.get("quant_algo")) for name, layer in (layers or {}).items()}
    globs = [name for name in by_layer if is_glob(name)]
    check_number(folder, globs)

    def declared(module: str) -> Scheme:
        if whole is not None:
            return whole if module_type(module) == "Linear" else PLAIN
        # Fused experts are listed once, under the name of the module that holds them all.
        own = next((by_layer[name] for name in beginnings(canonical(module)) if name in by_layer), None)
        if own is not None:
            return own
        others = aliases(module)
        named = by_layer.keys() & {beginning for name in others for beginning in beginnings(name)}
        named |= {glob for glob in globs if any(fnmatch.fnmatchcase(name, glob) for name in others)}
        return by_layer[max(named, key=len)] if named else PLAIN

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        algorithm = declared(module)
        if _is_unquantized(checkpoint, module, parts):
            is_meant = algorithm is not PLAIN and module_type(module) == "Linear"
            is_meant = is_meant and not excluded(names_of(module) | aliases(module))
            return replace(PLAIN, declared=algorithm.format) if is_meant else PLAIN
        # within a multimodal model vLLM calls it by this name (Model-Optimizer PR 2299: `language_model*` is all of it)
        in_vllm = {f"language_model.{canonical(module)}"} if module != canonical(module) else set()
        if not excluded(names_of(module) | in_vllm):
            return algorithm
        as_stored = _modelopt_as_stored(checkpoint, module, parts, [algorithm, *by_layer.values()])
        return PLAIN if as_stored is PLAIN else replace(as_stored, declared=PLAIN.format)

    return resolve


def _layers_of(groups: dict[str, Any]) -> dict[str, Any]:
    """The map of layers that config groups stand for, by their targets: which algorithm has such values and inputs."""
    algorithms: dict[Any, str] = {(4, True): "NVFP4", (4, False): "W4A16_NVFP4", (8, True): "FP8"}
    return {
        target: {"quant_algo": algorithms.get(((group.get("weights") or {}).get("num_bits"), has_inputs))}
        for group in groups.values()
        for has_inputs in [bool(group.get("input_activations"))]
        for target in group.get("targets") or []
    }


def _is_unquantized(checkpoint: Checkpoint, module: str, parts: frozenset[str]) -> bool:
    """Whether a weight's numbers are stored as they are, without any scale."""
    entry = checkpoint.tensors.get(part_name(module, "weight"))
    return parts == {"weight"} and entry is not None and entry.dtype in FLOATS


def _modelopt_as_stored(checkpoint: Checkpoint, module: str, parts: frozenset[str], likely: Sequence[Scheme]) -> Scheme:
    """The algorithm that stored parts are of, those that are `likely` first; plain where they are of none."""
    if not {"weight", "weight_scale"} <= parts:
        return PLAIN
    weight, scale = (checkpoint.tensors[part_name(module, part)] for part in ("weight", "weight_scale"))
    if "weight_scale_2" in parts:
        fitting = ["NVFP4", "W4A16_NVFP4"] if "input_scale" in parts else ["W4A16_NVFP4", "NVFP4"]
    elif scale.dtype == "U8":
        fitting = ["MXFP4" if weight.dtype == "U8" else "MXFP8"]
    elif prod(scale.shape) == 1:
        fitting = ["FP8"]
    else:
        fitting = ["FP8_PER_CHANNEL_PER_TOKEN" if prod(scale.shape) == weight.shape[0] else "FP8_PB_WO"]
    known = [_MODELOPT[name] for name in fitting]
    return next((scheme for scheme in likely if scheme in known), known[0])


def leave_inputs(groups: dict[str, Any]) -> bool:
    """Whether there are config groups, and none quantizes inputs."""
    return bool(groups) and all(
        isinstance(group, dict) and group.get("input_activations") is None for group in groups.values()
    )


def _fine_grained_fp8(checkpoint: Checkpoint, config: dict[str, Any], module_type: TypeOf) -> SchemeOf:
    folder = checkpoint.path
    numbers = config.get("fmt", "e4m3")
    check_known(numbers, ("e4m3",), folder, f"FP8 in {numbers!r}")
    block = config.get("weight_block_size")
    inputs = config.get("activation_scheme", "dynamic")
    if inputs not in ("dynamic", "static"):
        raise UsageError(
            "activations-unsupported",
            f"{folder}: activation_scheme {inputs!r} is not emulated; known: dynamic, static.",
        )
    are_sizes = isinstance(block, list) and all(type(size) is int and size > 0 for size in block)
    if block is not None and not (are_sizes and len(block) == 2):
        raise CorruptCheckpointError(
            "config-invalid",
            f"{folder}/config.json: weight_block_size is {json.dumps(block)}; two sizes or null are needed.",
        )
    settings: tuple[tuple[str, Any], ...] = (("block", tuple(block) if block else None), ("inputs", inputs))
    if config.get("scale_fmt") is not None:
        settings = (*settings, ("scale_fmt", config["scale_fmt"]))
    scheme = Scheme("fp8", settings=settings)
    excluded = frozenset(canonical(name) for name in config.get("modules_to_not_convert") or [])

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        name, is_stored = canonical(module), "weight_scale_inv" in parts
        # A listed name stands for a module, for all below it, or for all modules whose names end in it.
        if not excluded.isdisjoint((*beginnings(name), *endings(name))):
            return replace(scheme, declared=PLAIN.format) if is_stored else PLAIN
        # Without a list transformers leaves the output projection out; with one it converts what is not listed.
        if not is_stored and (name == "lm_head" or module_type(module) != "Linear"):
            return PLAIN
        if _is_unquantized(checkpoint, module, parts):
            return PLAIN if not excluded.isdisjoint(aliases(module)) else replace(PLAIN, declared=scheme.format)
        return scheme

    return resolve


def _mxfp4(folder: Path, config: dict[str, Any]) -> SchemeOf:
    """GPT-OSS's experts, but for modules that are listed."""
    patterns = list(config.get("modules_to_not_convert") or [])
    check_patterns(folder, patterns)

    def resolve(module: str, parts: frozenset[str]) -> Scheme:
        fused = fused_experts(module)
        if fused is None or any(is_left_by_mxfp4(pattern, fused[0]) for pattern in patterns):
            return PLAIN
        return Scheme("mxfp4")

    return resolve


def is_left_by_mxfp4(pattern: str, module: str) -> bool:
    """Whether an entry of `modules_to_not_convert` means a module, as transformers' `should_convert_module` has it."""
    return module.endswith(pattern) or matches_pattern(pattern, module)
