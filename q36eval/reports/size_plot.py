"""KL against the size of the weights: comparable branches, the Pareto front, and the plot. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

from q36eval.inert_text import html, plain
from q36eval.records import Verdict
from q36eval.reports.plots import COLOURS, Axis, Row, decades
from q36eval.reports.templates import render

Size = Literal["GiB", "bits"]
TITLES: dict[Size, str] = {"GiB": "size of the weights, GiB", "bits": "bits per weight"}
FRAME = {"width": 500, "height": 340, "left": 54, "right": 490, "top": 40, "bottom": 290}
"""Pixels: the size of the plot, and where its axes begin and end."""
Box = tuple[float, float, float, float]
LABEL, LETTER, LINE = 24, 8.2, 14
"""The maximum of a name's characters, and the pixels of one and of a line."""


@dataclass(frozen=True)
class SizedBranch:
    """A branch by one run: its mean KL over everything in nats/token with its interval, and its weights: `values`
    numbers in `stored_bytes`, scales included."""

    name: str
    run_id: str
    verdict: Verdict
    kl: float
    lower: float
    upper: float
    stored_bytes: int
    values: int

    def size(self, of: Size) -> float:
        """In GiB or in bits per weight."""
        return self.stored_bytes / 2**30 if of == "GiB" else 8 * self.stored_bytes / self.values


def front(branches: Sequence[SizedBranch], of: Size) -> list[SizedBranch]:
    """The Pareto front, the smallest first: branches for which none is both as small and as near to the reference."""
    best: list[SizedBranch] = []
    for each in sorted(branches, key=lambda each: (each.size(of), each.kl)):
        if not best or each.kl < best[-1].kl:
            best.append(each)
    return best


def size_plot(branches: Sequence[SizedBranch], of: Size, ink: str = "currentColor") -> Markup:
    """KL against one size as an SVG element, words in `ink`; colour and shape show the verdict, a line the front."""
    sizes = [each.size(of) for each in branches]
    across = _linear(min(sizes), max(sizes), TITLES[of])
    up = decades([Row(each.name, "", each.kl, each.lower, each.upper) for each in branches], "KL, nats/token")

    def x(size: float) -> float:
        return round(FRAME["left"] + (FRAME["right"] - FRAME["left"]) * across.share(size), 1)

    def y(kl: float) -> float:
        return round(FRAME["bottom"] - (FRAME["bottom"] - FRAME["top"]) * up.share(kl), 1)

    best = front(branches, of)
    marks = [(x(each.size(of)), y(each.kl)) for each in branches]
    points = zip(branches, marks, _labels([plain(each.name, LABEL) for each in branches], marks), strict=True)
    summary = f"Mean KL against {across.title}; best for their size: {', '.join(each.name for each in best)}"
    colours = {verdict: COLOURS[verdict] for verdict in dict.fromkeys(each.verdict for each in branches)}
    drawn = {"across": across, "up": up, "x": x, "y": y, "points": list(points), "best": best, "of": of}
    return Markup(render("size_plot.svg.j2", html, **FRAME, **drawn, summary=summary, ink=ink, colours=colours))


def _linear(low: float, high: float, title: str) -> Axis:
    """An axis with some room on both sides, and about four round ticks."""
    room = 0.15 * (high - low) or 0.1 * high
    low, high = max(0.0, low - room), high + room
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(power * each for each in (1, 2, 5, 10) if (high - low) / (power * each) <= 5)
    ticks = [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Axis(low, high, {tick: f"{tick:g}" for tick in ticks}, title)


def _labels(names: Sequence[str], marks: Sequence[tuple[float, float]]) -> list[tuple[str, float, float]]:
    """The start of each name, next to its mark and with the least overlap with other names and marks."""
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in marks]
    placed = []
    for name, (x, y) in zip(names, marks, strict=True):
        wide = LETTER * len(name)
        tried = [(x + dx, y + dy) for dy in (4, -8, 17, -21, 30) for dx in (10, -14 - wide, -wide / 2)]
        boxes = [(left, base - LINE + 3, left + wide, base + 3) for left, base in tried]
        outside = [max(0.0, FRAME["left"] - box[0]) + max(0.0, box[2] - FRAME["width"]) for box in boxes]
        covered = [
            sum(_shared(box, other) for other in taken) + 20 * out for box, out in zip(boxes, outside, strict=True)
        ]
        at = covered.index(min(covered))
        taken.append(boxes[at])
        placed.append((name, *tried[at]))
    return placed


def _shared(one: Box, other: Box) -> float:
    """How many pixels two boxes share."""
    wide, high = (min(one[side + 2], other[side + 2]) - max(one[side], other[side]) for side in (0, 1))
    return max(0.0, wide) * max(0.0, high)
