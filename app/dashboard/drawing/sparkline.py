"""A branch's last runs as a drawing the size of a word: its KL as a line, each run's verdict as a mark. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from q36eval.app.dashboard.verdict_style import GREY, look_of
from q36eval.records import Verdict

WIDTH, HEIGHT, MARGIN = 180, 48, 7
FIGURES_HEIGHT = 26
"""Below it runs without a figure stand apart, so that none looks like a low one."""
LINE = GREY

_SHAPES = {
    "circle": '<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>',
    "circle-open": '<circle cx="{x}" cy="{y}" r="2.5" fill="none" stroke="{colour}" stroke-width="1.5"/>',
    "x": '<path d="M{l} {t}L{r} {b}M{l} {b}L{r} {t}" stroke="{colour}" stroke-width="2.2"/>',
    "diamond": '<path d="M{x} {t}L{r} {y}L{x} {b}L{l} {y}Z" fill="{colour}"/>',
}


@dataclass(frozen=True)
class SparkPoint:
    """One run: its figure, not a number where it has none (the line breaks there), and its verdict."""

    figure: float
    verdict: Verdict | None


def sparkline(points: Sequence[SparkPoint], margin: float | None = None) -> str:
    """An SVG of the runs from left to right; less is drawn lower, and what has no figure lies at the foot.

    The margin, where there is one and any figure, is a dashed line at its height.
    """
    drawn = [point.figure for point in points if math.isfinite(point.figure)]
    bounds = [*drawn, margin] if drawn and margin is not None else drawn
    low, high = (min(bounds), max(bounds)) if bounds else (0.0, 0.0)
    places = [_place(i, point, len(points), low, high) for i, point in enumerate(points)]
    parts = [
        f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{LINE}" stroke-width="1.5"/>'
        for (x0, y0), (x1, y1), one, other in zip(places, places[1:], points, points[1:], strict=False)
        if math.isfinite(one.figure) and math.isfinite(other.figure)
    ]
    if drawn and margin is not None:
        _, y = _place(0, SparkPoint(margin, None), len(points), low, high)
        parts.append(f'<path d="M0 {y:.1f}H{WIDTH}" stroke="{LINE}" stroke-width="1" stroke-dasharray="4 3"/>')
    parts += [_mark(x, y, point.verdict) for (x, y), point in zip(places, points, strict=True)]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def words(points: Sequence[SparkPoint], what: str, margin: float | None = None) -> str:
    """What the drawing shows, for who does not see it."""
    verdicts = ", ".join(look_of(point.verdict).word for point in points)
    drawn = [point.figure for point in points if math.isfinite(point.figure)]
    figures = f"; {what} from {drawn[0]:.3g} to {drawn[-1]:.3g}" if drawn else ""
    limit = f", margin {margin:.3g}" if figures and margin is not None else ""
    return f"Last {len(points)} runs, oldest first: {verdicts}{figures}{limit}"


def _place(i: int, point: SparkPoint, n: int, low: float, high: float) -> tuple[float, float]:
    x = MARGIN + (WIDTH - 2 * MARGIN) * ((i + 0.5) / n if n < 3 else i / (n - 1))
    if not math.isfinite(point.figure):
        return x, HEIGHT - MARGIN
    share = 0.5 if high == low else (point.figure - low) / (high - low)
    return x, MARGIN + (1 - share) * (FIGURES_HEIGHT - MARGIN)


def _mark(x: float, y: float, verdict: Verdict | None) -> str:
    look = look_of(verdict)
    numbers = {"x": x, "y": y, "l": x - 3.2, "r": x + 3.2, "t": y - 3.2, "b": y + 3.2}
    return _SHAPES[look.marker].format(**{k: f"{v:.1f}" for k, v in numbers.items()}, colour=look.hex_colour)
