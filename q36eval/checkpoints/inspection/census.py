"""How many weights are quantized by which scheme: what stands in the file, and what its module does to its input."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from q36eval.checkpoints.inspection.coverage import Shapes
from q36eval.checkpoints.inspection.stored import stored_kind
from q36eval.checkpoints.inspection.units import Unit
from q36eval.errors import CorruptCheckpointError, UsageError
from q36eval.schemes import scheme_name


def scheme_census(units: Iterable[Unit], shapes: Shapes) -> dict[str, int] | None:
    """Quantized weights by scheme (`q36eval.schemes`); None where one of them is of no scheme that can be told."""
    inputs = _Inputs()
    counts: Counter[str] = Counter()
    for unit in units:
        if unit.is_plain:
            continue
        shape = shapes.get(unit.name)
        stored = None if shape is None else stored_kind(unit, shape)
        if stored is None:
            return None
        try:
            counts[scheme_name(stored, inputs.of(unit))] += 1
        except (CorruptCheckpointError, UsageError):
            return None
    return dict(sorted(counts.items()))


class _Inputs:
    """The quantization of inputs, read once for all weights of one entry of the configuration."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], str | None] = {}

    def of(self, unit: Unit) -> str | None:
        scheme = unit.weight.scheme
        key = (scheme.format, id(scheme.compressed), scheme.settings, unit.tensor_class == "embeddings")
        if key not in self._known:
            found = unit.weight.activations()
            self._known[key] = None if found is None else found.kind
        return self._known[key]
