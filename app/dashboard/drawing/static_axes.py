"""Axes of a still chart: where a value stands, which ticks it has, and the words of both."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

from q36eval.app.dashboard.escape import line

Dict = dict[str, Any]
_TAGS = re.compile(r'(<br>|<b>|</b>|<span style="color:#[0-9a-f]{6}">|</span>)')
_TSPANS = {"<b>": '<tspan font-weight="600">', "</b>": "</tspan>", "</span>": "</tspan>"}
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TICKS = 5
PADDING = 0.06
"""Of an axis without a range of its own, on both sides of what is drawn."""


def text_lines(text: str) -> list[str]:
    """Lines of SVG text, of a string as Plotly reads it: its tags become `tspan`, all else is escaped anew."""
    lines = [""]
    for part in _TAGS.split(text):
        if part == "<br>":
            lines.append("")
        elif part in _TSPANS:
            lines[-1] += _TSPANS[part]
        elif _TAGS.fullmatch(part):
            lines[-1] += f'<tspan fill="{part[-9:-2]}">'
        else:
            lines[-1] += escape(unescape(part))
    return lines


def plain_text(text: str) -> str:
    """Such a string without its tags, to be escaped where it is written."""
    return line(unescape(_TAGS.sub(" ", text)))


@dataclass(frozen=True)
class Axis:
    """Maps values to [start, end]: per cent from left to right, or pixels from `end`, the foot, up to `start`.

    `low` and `high` are what stands at the ends, as logarithms where `log`; on an axis of `names` they are counted.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    names: tuple[str, ...] = ()

    def at(self, value: Any, *, scaled: bool = False) -> float:
        """The place of a value; NaN where it has none. `scaled`: it is a logarithm already."""
        if self.names and isinstance(value, str):
            value = self.names.index(value) if value in self.names else math.nan
        number = math.nan if value is None else float(value)
        if self.log and not scaled:
            number = math.log10(number) if number > 0 else math.nan
        return self.start + (number - self.low) / (self.high - self.low) * (self.end - self.start)

    def within(self, value: Any, *, scaled: bool = False) -> float:
        """As `at`; what lies beyond an end stands at it."""
        low, high = sorted((self.start, self.end))
        return min(max(self.at(value, scaled=scaled), low), high)

    def holds(self, place: float) -> bool:
        """Whether a place is one of the axis; that of NaN is not."""
        low, high = sorted((self.start, self.end))
        return low - 0.01 <= place <= high + 0.01

    def ticks(self, given: Dict) -> list[tuple[float, str]]:
        """Places and words of its ticks, by the axis' own settings or as many round values as can be read."""
        if given.get("tickvals") is not None:
            return [(self.at(v), w) for v, w in zip(given["tickvals"], given["ticktext"], strict=True)]
        if self.names:
            return [(self.at(i), name) for i, name in enumerate(self.names)]
        low, high = sorted((self.low, self.high))
        if self.log:
            step = max(int(given.get("dtick") or 1), math.ceil((high - low) / 8))
            return [
                (self.at(10.0**power), _power(power)) for power in range(math.ceil(low), math.floor(high) + 1, step)
            ]
        values, form = list(_round_values(low, high)), given.get("tickformat")
        return [(self.at(v), format(v, form) if form else f"{v:.10g}") for v in values]


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"10{str(power).translate(_SUPERSCRIPTS)}"


def _round_values(low: float, high: float) -> Iterator[float]:
    rough = (high - low) / TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(each * size for each in _STEPS if each * size >= rough)
    for place in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        yield place * step


def axis_of(given: Dict, drawn: Sequence[Any], start: float, end: float) -> Axis:
    """The axis of a figure's settings and of all that is `drawn` along it: numbers, or names."""
    log = given.get("type") == "log"
    names = tuple(dict.fromkeys(value for value in drawn if isinstance(value, str)))
    numbers = [float(v) for v in drawn if not isinstance(v, str) and v is not None and math.isfinite(v)]
    if names:
        low, high = -0.5, len(names) - 0.5
        if given.get("autorange") == "reversed":  # the first one at the top, as one reads
            low, high = high, low
        return Axis(low, high, start, end, names=names)
    if given.get("range") is not None:
        low, high = map(float, given["range"])
        return Axis(low, high, start, end, log)
    if log:
        numbers = [math.log10(number) for number in numbers if number > 0]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    if given.get("rangemode") == "tozero" and not log:
        low, high = min(low, 0.0), max(high, 0.0)
    space = PADDING * ((high - low) or abs(high) or 1.0)
    least = low if low == 0 and given.get("rangemode") == "tozero" else low - space
    return Axis(least, high + space, start, end, log)
