"""How one weight is stored, and what every reader of a quantization configuration needs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from q36eval.checkpoints.names import canonical
from q36eval.checkpoints.patterns import check_pattern
from q36eval.errors import CorruptCheckpointError


@dataclass(frozen=True)
class Scheme:
    """How one weight is stored, and how its module's input is quantized before use.

    `compressed` is the compressed-tensors `QuantizationScheme` where there is one (or our own reading of it, `Group`);
    `settings` holds what the other formats need.
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


def table(file: Path, name: str, value: Any) -> dict[str, Any]:
    """An entry that must be a table.

    Raises:
        CorruptCheckpointError: it is none.
    """
    if not isinstance(value, dict):
        kind = "null" if value is None else f"a {type(value).__name__}"
        raise CorruptCheckpointError(f"{file}: {name} is {kind}, not a table; correct it or download it again.")
    return value


def names_of(module: str) -> set[str]:
    """What rules may call a module: its stored name, or the one of the text-only layout."""
    return {module, canonical(module)}


def check_patterns(folder: Path, patterns: list[str]) -> None:
    """Refuse a configuration with a malformed pattern.

    Raises:
        CorruptCheckpointError: one is malformed.
    """
    for pattern in patterns:
        try:
            check_pattern(pattern)
        except CorruptCheckpointError as error:
            raise CorruptCheckpointError(f"{folder}/config.json: quantization_config: {error}.") from error
