"""compressed-tensors' `quantization_config`, read without the library where its reading leaves no question.

Importing the library brings all of transformers with it, which takes several seconds. What is read here is only what is
written out in full, as the producers write it; anything else (presets, inferred strategies and formats, older
spellings, what the library would refuse) gives None, and is for the library. A test goes through every combination of
entries: what is read here the library accepts, with the same values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMATS = (
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "pack-quantized",
)
STATUSES = ("initialized", "calibration", "frozen", "compressed", "decompressed")
DTYPES = (None, "torch.float8_e4m3fn", "torch.uint8", "torch.int8", "torch.bfloat16", "torch.float16", "torch.float32")
_GROUP_KEYS = {"targets", "weights", "input_activations", "output_activations", "format"}
_DEFAULTS: dict[str, Any] = {
    "num_bits": 8,
    "type": "int",
    "symmetric": True,
    "group_size": None,
    "strategy": None,
    "block_structure": None,
    "dynamic": False,
    "actorder": None,
    "scale_dtype": None,
    "zp_dtype": None,
    "observer": None,
    "observer_kwargs": {},
}


@dataclass(frozen=True)
class Arguments:
    """How values are quantized; the names are those of the library's `QuantizationArgs`."""

    num_bits: int
    type: str
    symmetric: bool
    strategy: str
    group_size: int | None
    block_structure: list[int] | None
    dynamic: bool | str
    scale_dtype: str | None


@dataclass(frozen=True)
class Group:
    """One scheme and what it is for, as the library's `QuantizationScheme`."""

    targets: list[str]
    weights: Arguments | None
    input_activations: Arguments | None
    format: str


@dataclass(frozen=True)
class Groups:
    """A whole configuration, as the library's `QuantizationConfig`."""

    config_groups: dict[str, Group]
    ignore: list[str]
    format: str


class _UnclearError(Exception):
    """What was met is for the library to read."""


def read_groups(config: Mapping[str, Any]) -> Groups | None:
    """The configuration, or None where the library has to read it."""
    try:
        _need(isinstance(config.get("config_groups"), dict) and isinstance(config.get("format"), str))
        _need(config.get("quant_method") == "compressed-tensors")
        _need(config.get("quantization_status", "initialized") in STATUSES)
        _need(config.get("global_compression_ratio") is None)
        ignore = [] if config.get("ignore") is None else config["ignore"]
        _need(_is_list_of(ignore, str))
        if config.get("kv_cache_scheme") is not None:
            _arguments(config["kv_cache_scheme"], ("tensor",))
        groups = {name: _group(group) for name, group in config["config_groups"].items()}
        return Groups(groups, ignore, config["format"])
    except _UnclearError:
        return None


def _group(group: Any) -> Group:
    _need(isinstance(group, dict) and group.keys() <= _GROUP_KEYS and _is_list_of(group.get("targets"), str))
    _need(group.get("format") in FORMATS and group.get("output_activations") is None)
    weights, inputs = group.get("weights"), group.get("input_activations")
    arguments = (
        None if weights is None else _arguments(weights, ("tensor", "channel", "group", "tensor_group", "block"))
    )
    _need(arguments is None or arguments.dynamic is False)
    taken = None if inputs is None else _arguments(inputs, ("tensor", "token", "group", "tensor_group"))
    _need(taken is None or inputs.get("actorder") is None)
    return Group(group["targets"], arguments, taken, group["format"])


def _arguments(arguments: Any, strategies: tuple[str, ...]) -> Arguments:
    _need(isinstance(arguments, dict) and arguments.keys() <= _DEFAULTS.keys())
    given = _DEFAULTS | arguments
    kind, strategy, dynamic = given["type"], given["strategy"], given["dynamic"]
    _need(type(given["num_bits"]) is int and isinstance(given["symmetric"], bool))
    _need((kind == "int" and 1 <= given["num_bits"] <= 8) or (kind == "float" and given["num_bits"] in (4, 8)))
    _need(strategy in strategies and given["actorder"] in (None, "weight", "static"))
    _need(_one_of(given["scale_dtype"], DTYPES) and _one_of(given["zp_dtype"], DTYPES))
    _need(given["observer"] is None or isinstance(given["observer"], str))
    _need(isinstance(given["observer_kwargs"], dict))
    _need((strategy in ("group", "tensor_group")) == (given["group_size"] is not None))
    _need(given["group_size"] is None or (type(given["group_size"]) is int and given["group_size"] > 0))
    _need((strategy == "block") == (given["block_structure"] is not None))
    _need(given["block_structure"] is None or is_pair(given["block_structure"]))
    _need(dynamic is False or (dynamic is True and strategy in ("token", "tensor", "tensor_group", "group"))
          or (dynamic == "local" and strategy == "tensor_group"))  # fmt: skip
    _need(strategy != "token" or dynamic is True)
    return Arguments(**{name: given[name] for name in Arguments.__dataclass_fields__})


def _need(holds: bool) -> None:
    if not holds:
        raise _UnclearError


def _one_of(value: Any, known: tuple[Any, ...]) -> bool:
    return isinstance(value, str | None) and value in known


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(entry, kind) for entry in value)


def is_pair(value: Any) -> bool:
    """Whether a value read from JSON is a list of two sizes."""
    return _is_list_of(value, int) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)
