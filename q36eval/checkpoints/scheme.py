"""How one weight is stored, and what every reader of a quantization configuration needs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from q36eval.checkpoints.names import canonical
from q36eval.checkpoints.patterns import check_count, check_pattern
from q36eval.errors import CorruptCheckpointError, UsageError


@dataclass(frozen=True)
class Scheme:
    """How one weight is stored, and how its module's input is quantized before use.

    `compressed` is the compressed-tensors `QuantizationScheme` where there is one; `settings` holds what the other
    formats need. `declared` is the format that the configuration declares where the weight is stored otherwise; the two
    are then still one scheme.
    """

    format: str
    compressed: Any = None
    settings: tuple[tuple[str, Any], ...] = ()
    declared: str | None = field(default=None, compare=False)

    def setting(self, name: str) -> Any:
        """One entry of `settings`, None when absent."""
        return dict(self.settings).get(name)


PLAIN = Scheme("plain")
FLOATS = ("BF16", "F16", "F32", "F64")
"""The dtypes of numbers that are stored as they are, as headers name them."""
SchemeOf = Callable[[str, frozenset[str]], Scheme]
"""Maps a stored module name and the parts stored for it to its scheme."""
TypeOf = Callable[[str], str]
"""Maps a stored module name to the torch class (`Linear`, `Embedding`) that targets may mean; empty for any other."""


METHODS = ("compressed-tensors", "gptq", "awq", "auto-round", "modelopt", "fp8", "mxfp4")
"""The values of `quant_method` that are decoded."""
_MLX = "MLX"
_TITLES = {"hqq": "HQQ", "exl2": "EXL2", "exl3": "EXL3"}


def check_method(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse a quantization that is not decoded; entries of the wrong kind are left to those who read them.

    Raises:
        UsageError: it is not among `METHODS`.
    """
    method = _method(config)
    text = config.get("text_config")
    if method is None and isinstance(text, dict):
        method = _method(text)
    if method not in (None, "none", *METHODS):
        name = _TITLES.get(method, method)
        raise UsageError(
            "scheme-unsupported",
            f"{folder} is quantized by {name!r}, which is not decoded (known: {', '.join(METHODS)}); dequantize its "
            f"weights to BF16 and judge that copy.",
        )


def _method(config: Mapping[str, Any]) -> str | None:
    """The method that settings name; MLX names none, and has a table of its own, which it may write twice."""
    given = config.get("quantization_config") or config.get("quantization")
    if not isinstance(given, dict):
        return None
    if is_of_model_optimizer(given):
        return "modelopt"
    method = given.get("quant_method", _MLX if {"bits", "group_size"} <= given.keys() else None)
    return method if isinstance(method, str) else None


def is_of_model_optimizer(given: Mapping[str, Any]) -> bool:
    """Whether settings are Model Optimizer's: some exporters leave the method out, or write vLLM's name for it
    (`modelopt_fp4`)."""
    method = given.get("quant_method")
    if method is None:
        return isinstance(given.get("quantization"), dict) or "quant_algo" in given
    return isinstance(method, str) and method.startswith("modelopt")


def check_known(value: Any, known: Collection[Any], folder: Path, what: str) -> None:
    """Refuse a value that is not decoded; `what` calls it in the sentence.

    Raises:
        UsageError: it is not among those that are `known`.
    """
    if value not in known:
        listing = ", ".join(map(str, known))
        raise UsageError("scheme-unsupported", f"{folder}: {what} is not decoded; known: {listing}.")


def table(file: Path, name: str, value: Any) -> dict[str, Any]:
    """An entry that must be a table.

    Raises:
        CorruptCheckpointError: it is none.
    """
    if not isinstance(value, dict):
        kind = "null" if value is None else f"a {type(value).__name__}"
        raise CorruptCheckpointError(
            "config-invalid", f"{file}: {name} is {kind}, not a table; correct it or download it again."
        )
    return value


def names_of(module: str) -> set[str]:
    """What rules may call a module: its stored name, or the one of the text-only layout."""
    return {module, canonical(module)}


def is_glob(target: str) -> bool:
    """Whether a target is more than a name written out in full, as `fnmatch` has it."""
    return any(sign in target for sign in "*?[")


def listed(targets: Iterable[str], begin: str = "re:") -> tuple[frozenset[str], list[str]]:
    """Names written out in full, and the patterns, which begin with `begin`, without it."""
    given = list(targets)
    patterns = [target.removeprefix(begin) for target in given if target.startswith(begin)]
    return frozenset(target for target in given if not target.startswith(begin)), patterns


def check_patterns(folder: Path, patterns: list[str]) -> None:
    """Refuse a configuration with a malformed pattern, or with more of them than can be gone through.

    Raises:
        CorruptCheckpointError: one is malformed, or there are too many.
    """
    check_number(folder, patterns)
    for pattern in patterns:
        with _of_a_configuration(folder):
            check_pattern(pattern)


def check_number(folder: Path, patterns: list[str]) -> None:
    """Refuse a configuration with more patterns than can be gone through.

    Raises:
        CorruptCheckpointError: there are too many.
    """
    with _of_a_configuration(folder):
        check_count(patterns)


@contextmanager
def _of_a_configuration(folder: Path) -> Iterator[None]:
    try:
        yield
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(error.code, f"{folder}/config.json: quantization_config: {error}.") from error
