"""Axes of plots: from a figure to a place in pixels, and where to put ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Maps [low, high] to [left, right] pixels, by its logarithm where `log`. What lies outside stays at the end."""

    low: float
    high: float
    left: float
    right: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; of NaN the left end."""
        if math.isnan(value):
            return self.left
        inside = min(max(value, self.low), self.high)
        share = (self._scaled(inside) - self._scaled(self.low)) / (self._scaled(self.high) - self._scaled(self.low))
        return self.left + share * (self.right - self.left)

    def beyond(self, value: float) -> int:
        """-1 where a value lies left of the axis, 1 where right of it, else 0."""
        return -1 if value < self.low else 1 if value > self.high else 0

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    @classmethod
    def decades(cls, values: Sequence[float], left: float, right: float) -> "Axis":
        """A logarithmic axis of whole decades around the positive finite ones of `values`."""
        fit = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
        low, high = math.floor(math.log10(min(fit))), math.ceil(math.log10(max(fit)))
        return cls(10.0**low, 10.0 ** max(high, low + 1), left, right, log=True)

    def powers(self) -> list[float]:
        """The powers of ten on a logarithmic axis."""
        return [10.0**power for power in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]
