"""A Plotly figure as still SVG: a page needs no script of 4.7 MB for it.

Its height is in pixels and its width in per cent, so that words stay as large on a phone as on a desk. What a mark
stands for is its title, which a browser shows beside the pointer. Understood is what this program's figures use:
scatters and bars with intervals, lines and bands, words, names or numbers on linear or logarithmic axes.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from q36eval.app.dashboard.drawing.static_axes import Axis, Dict, axis_of, plain_text, text_lines
from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.verdict_style import BLUE

DASHES = {"dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3"}
CHARACTER, LINE = 6.7, 15
"""Pixels of a letter and of a line of words."""
ROW, FRAME = 24, 100
"""Pixels of a row with a name, and what a figure's height has beside the plot."""
TOP, RIGHT, TITLE_WIDTH, TILTED = 12, 12, 46, 55
PHONE = 290
"""Pixels of a phone's plot: names that do not fit beside each other there are tilted."""
NARROW = 16
"""Names beyond so many would collide on a phone, so that every second one stands on wider screens alone."""
WIDTH = 900
"""Pixels of a saved chart."""

_SHAPES = {
    "circle": "M{a} 0A{r} {r} 0 1 0 {r} 0A{r} {r} 0 1 0 {a} 0Z",
    "square": "M{a} {a}H{r}V{r}H{a}Z",
    "diamond": "M0 {a}L{r} 0L0 {r}L{a} 0Z",
    "triangle-up": "M0 {a}L{r} {r}H{a}Z",
    "x": "M{a} {a}L{r} {r}M{a} {r}L{r} {a}",
    "line-ns": "M0 {a}V{r}",
    "line-ew": "M{a} 0H{r}",
}
_STROKED = ("x", "line-ns", "line-ew")
_RAYS = [((5, 2)[i % 2], i * math.pi / 5) for i in range(10)]
_STAR = "M" + "L".join(f"{r * math.sin(angle):.2f} {-r * math.cos(angle):.2f}" for r, angle in _RAYS)
_ASKED = re.compile(r"%\{(\w+)(?:\[(\d+)\])?(?::([^}]*))?\}")


@dataclass(frozen=True)
class Still:
    """A drawn chart: its marks, the pixels that words take left and right of the plot and all on the height, and its
    legend's names with the mark of each."""

    body: str
    left: float
    right: float
    height: float
    legend: tuple[tuple[str, str], ...]

    def html(self, alt: str) -> str:
        """For a page, whose style sheet sets colours of words and lines by its theme; `alt` is what it says unseen."""
        keys = "".join(
            f'<span><svg width="22" height="14">{mark}</svg> {escape(name)}</span>' for name, mark in self.legend
        )
        named = f'<div class="q36-keys" aria-hidden="true">{keys}</div>' if keys else ""
        wide = f"margin-left:{self.left:.0f}px;width:calc(100% - {self.left + self.right:.0f}px)"
        size = f'style="{wide};height:{self.height:.0f}px"'
        return f'{named}<svg role="img" aria-label="{escape(line(alt))}" {size}>{self.body}</svg>'

    def file(self, alt: str) -> bytes:
        """For a file of its own: black on white, its legend above."""
        top = 20 * len(self.legend)
        keys = "".join(
            f'<svg x="10" y="{20 * row + 2}" overflow="visible">{mark}<text x="30" y="11">{escape(name)}</text></svg>'
            for row, (name, mark) in enumerate(self.legend)
        )
        whole, plot = top + self.height + 10, WIDTH - self.left - self.right
        style = "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.ends{fill:#666}svg{overflow:visible}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{whole:.0f}">'
            f"<title>{escape(line(alt))}</title><style>{style}</style>"
            f'<rect width="100%" height="100%" fill="#fff"/>{keys}'
            f'<svg x="{self.left:.0f}" y="{top}" width="{plot:.0f}" height="{self.height:.0f}">'
            f"{self.body}</svg></svg>"
        ).encode()


def still(figure: go.Figure) -> Still:
    """Draw a figure."""
    layout = figure.layout.to_plotly_json()
    traces = [trace.to_plotly_json() for trace in figure.data]
    groups = _offsets(layout, traces)
    for number, trace in enumerate(traces):
        trace["offset"] = groups[number]
    parts: list[str] = []
    x_given, y_given = layout.get("xaxis", {}), layout.get("yaxis", {})
    names = {value for trace in traces for value in trace["y"] if isinstance(value, str)}
    above = TOP + (LINE if y_given.get("title") else 0)
    below = above + (ROW * len(names) + 8 if names else layout["height"] - FRAME)
    shapes = layout.get("shapes", ())
    x = axis_of(x_given, [*_along("x", traces), *_ends(shapes, "x")], 0.0, 100.0)
    y = axis_of(y_given, [*_along("y", traces), *_ends(shapes, "y")], below, above)
    parts += _draw_plot(layout, traces, shapes, x, y)
    left = _draw_y(parts, y, y_given)
    foot, tilted, beyond = _draw_x(parts, x, x_given, above, below)
    return Still("".join(parts), max(left, tilted), max(RIGHT, beyond), foot, tuple(_legend(traces)))


def _offsets(layout: Dict, traces: Sequence[Dict]) -> list[float]:
    """How far beside its name each series stands, so that none hides another's interval."""
    if layout.get("scattermode") != "group":
        return [0.0] * len(traces)
    wide = 1 - layout.get("scattergap", 0.0)
    return [wide * ((number + 0.5) / len(traces) - 0.5) for number in range(len(traces))]


def _along(way: str, traces: Sequence[Dict]) -> list[Any]:
    """All values along an axis, with the ends of intervals."""
    values: list[Any] = []
    for trace in traces:
        values += list(trace[way])
        for value, _, above, below in _marks(trace, way):
            if not isinstance(value, str) and value is not None:
                values += [value + above, value - below]
        if trace["type"] == "bar" and way == "x":
            values += [end for v, w in zip(trace["x"], trace["width"], strict=True) for end in (v - w / 2, v + w / 2)]
    return values


def _marks(trace: Dict, way: str) -> Iterator[tuple[Any, int, float, float]]:
    """Each value with its number and the arms of its interval along that axis."""
    error = trace.get(f"error_{way}") or {}
    for number, value in enumerate(trace[way]):
        above, below = ((error.get(key) or ())[number : number + 1] for key in ("array", "arrayminus"))
        yield value, number, *(float(arm[0] or 0.0) if len(arm) else 0.0 for arm in (above, below))


def _ends(shapes: Sequence[Dict], way: str) -> list[Any]:
    """What lines and bands reach along an axis: a limit is in sight."""
    within = [shape for shape in shapes if "domain" not in str(shape.get(f"{way}ref"))]
    return [shape[f"{way}{end}"] for shape in within for end in "01"]


def _draw_plot(layout: Dict, traces: Sequence[Dict], shapes: Sequence[Dict], x: Axis, y: Axis) -> list[str]:
    parts: list[str] = []
    for below in (True, False):
        if not below:
            for trace in traces:
                parts += _draw_bars(trace, x, y) if trace["type"] == "bar" else _draw_scatter(trace, x, y)
        parts += [_draw_shape(shape, x, y) for shape in shapes if (shape.get("layer") == "below") is below]
    for note in layout.get("annotations", ()):
        parts += _draw_note(note, x, y)
    return parts


def _draw_shape(shape: Dict, x: Axis, y: Axis) -> str:
    if "domain" in str(shape.get("xref")):
        left, right = 0.0, 100.0
    else:
        left, right = x.within(shape["x0"]), x.within(shape["x1"])
    above, below = (
        (y.start, y.end) if "domain" in str(shape.get("yref")) else (y.within(shape["y0"]), y.within(shape["y1"]))
    )
    if shape["type"] == "rect":
        top, low = sorted((above, below))
        size = f'width="{abs(right - left):.2f}%" height="{low - top:.1f}"'
        fill = f'fill="{shape["fillcolor"]}" fill-opacity="{shape.get("opacity", 1)}"'
        return f'<rect x="{min(left, right):.2f}%" y="{top:.1f}" {size} {fill}/>'
    return _line(left, above, right, below, shape["line"])


def _line(x0: float, y0: float, x1: float, y1: float, stroke: Dict) -> str:
    dash = DASHES.get(stroke.get("dash", ""))
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x0:.2f}%" y1="{y0:.1f}" x2="{x1:.2f}%" y2="{y1:.1f}" stroke="{stroke.get("color", BLUE)}" '
        f'stroke-width="{stroke.get("width", 2)}"{dashed}/>'
    )


def _draw_bars(trace: Dict, x: Axis, y: Axis) -> Iterator[str]:
    for number, (centre, count, wide) in enumerate(zip(trace["x"], trace["y"], trace["width"], strict=True)):
        if count is None:
            continue
        left, right = x.within(centre - wide / 2), x.within(centre + wide / 2)
        if math.isnan(left):  # a bar from below the first value that a logarithm has
            left = x.start
        top = y.within(count)
        yield (
            f'<rect x="{left:.2f}%" y="{top:.1f}" width="{right - left:.2f}%" height="{y.start - top:.1f}" '
            f'fill="{trace["marker"]["color"]}"><title>{escape(_hover(trace, number))}</title></rect>'
        )


def _draw_scatter(trace: Dict, x: Axis, y: Axis) -> Iterator[str]:
    places = []
    for (at_x, number, right, left), (at_y, _, above, below) in zip(
        _marks(trace, "x"), _marks(trace, "y"), strict=True
    ):
        place = x.at(at_x), y.at(at_y)
        if trace["offset"]:
            place = x.at(x.names.index(at_x) + trace["offset"]), place[1]
        places.append(place)
        if right or left:
            arms = trace["error_x"]
            arm = {
                "color": arms.get("color") or _at(trace["marker"]["color"], number),
                "width": arms.get("thickness", 2),
            }
            yield _line(x.within(at_x - left), place[1], x.within(at_x + right), place[1], arm)
        if above or below:
            arms = trace["error_y"]
            arm = {"color": arms.get("color", BLUE), "width": arms.get("thickness", 2)}
            yield _line(place[0], y.within(at_y - below), place[0], y.within(at_y + above), arm)
    mode = trace.get("mode", "lines")
    if "lines" in mode:
        for one, other in pairwise(places):
            if not any(map(math.isnan, (*one, *other))):
                ends = [min(max(end, 0.0), 100.0) for end in (one[0], other[0])]
                yield _line(ends[0], one[1], ends[1], other[1], trace.get("line") or {})
    if "markers" in mode:
        for number, place in enumerate(places):
            if x.holds(place[0]) and y.holds(place[1]):
                yield _draw_marker(trace, number, place)


def _at(value: Any, number: int) -> Any:
    return value[number] if isinstance(value, list | tuple) else value


def _draw_marker(trace: Dict, number: int, place: tuple[float, float]) -> str:
    marker = trace.get("marker") or {}
    colour = _at(marker.get("color"), number) or (marker.get("line") or {}).get("color")
    colour = colour or (trace.get("line") or {}).get("color", BLUE)
    drawn = mark(_at(marker.get("symbol"), number) or "circle", colour, marker.get("size", 6), 2)
    said = escape(_hover(trace, number))
    title = f'<title>{said}</title><circle r="9" fill="transparent"/>' if said else ""
    return f'<svg x="{place[0]:.2f}%" y="{place[1]:.1f}">{title}{drawn}</svg>'


def mark(symbol: str, colour: str, size: float, wide: float) -> str:
    """A mark about the point 0, 0."""
    hollow = symbol.endswith("-open")
    shape, r = symbol.removesuffix("-open"), f"{size / 2:g}"
    if shape == "star":
        return f'<path d="{_STAR}" transform="scale({size / 10:g})" fill="{colour}"/>'
    path = _SHAPES[shape].format(a=f"-{r}", r=r)
    if hollow or shape in _STROKED:
        return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{wide + (shape == "x"):g}"/>'
    return f'<path d="{path}" fill="{colour}"/>'


def _hover(trace: Dict, number: int) -> str:
    """What a mark says of itself, by its hover template."""
    template = (trace.get("hovertemplate") or "").partition("<extra>")[0]

    def value(asked: re.Match[str]) -> str:
        name, of, form = asked.groups()
        one: Any = trace[name][number]
        one = one if of is None else one[int(of)]
        return format(one, form) if form else str(one)

    return plain_text(_ASKED.sub(value, template))


def _draw_note(note: Dict, x: Axis, y: Axis) -> Iterator[str]:
    lines = text_lines(note["text"])
    if note.get("yref") == "paper":  # above the plot, in rows of its own
        at = x.within(note["x"], scaled=x.log)
        anchor = "start" if at < 20 else "end" if at > 80 else "middle"
        yield _words(at, y.end - 6 - (note["y"] - 1.02) / 0.07 * LINE, lines[0], anchor, "")
        return
    for place, words in enumerate(lines):
        yield f'<text x="0" y="{y.at(note["y"]) + 13 + 17 * place:.1f}" class="said">{words}</text>'


def _words(x: float, y: float, words: str, anchor: str = "middle", of: str = "ends") -> str:
    return f'<text class="{of}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _draw_y(parts: list[str], y: Axis, given: Dict) -> float:
    """Draws the upright axis; returns the pixels that its words take."""
    if given.get("visible") is False:
        return 4.0
    wide = 0.0
    for place, words in y.ticks(given):
        if not y.names:
            parts.insert(0, f'<line class="grid" x1="0" x2="100%" y1="{place:.1f}" y2="{place:.1f}"/>')
        shown = text_lines(words)[0]
        parts.append(f'<text class="ends" x="-8" y="{place + 4:.1f}" text-anchor="end">{shown}</text>')
        wide = max(wide, CHARACTER * len(plain_text(words)) + 12)
    title = (given.get("title") or {}).get("text")
    if title:
        parts.append(f'<text class="ends" x="{-wide + 4:.0f}" y="{y.end - 10:.1f}">{text_lines(title)[0]}</text>')
    return wide


def _draw_x(parts: list[str], x: Axis, given: Dict, top: float, foot: float) -> tuple[float, float, float]:
    """Draws the axis at the foot; returns where it ends, in pixels, and those that its words take left and right."""
    shown = [] if given.get("showticklabels") is False else x.ticks(given)
    for place, _ in x.ticks(given):
        if not x.names and x.holds(place):
            parts.insert(0, f'<line class="grid" x1="{place:.2f}%" x2="{place:.2f}%" y1="{top:.1f}" y2="{foot:.1f}"/>')
    parts.insert(0, f'<line class="grid" x1="0" x2="100%" y1="{foot:.1f}" y2="{foot:.1f}"/>')
    if not shown:
        return foot, 0.0, 0.0
    names = [plain_text(words) for _, words in shown]
    longest = max(map(len, names))
    lines, aside, beyond = max(words.count("<br>") + 1 for _, words in shown), 0.0, 0.0
    if x.names and CHARACTER * longest * len(names) > PHONE:
        slope = math.radians(TILTED)
        for number, (place, words) in enumerate(shown):
            skipped = ' class="ends every-second"' if len(names) > NARROW and number % 2 else ' class="ends"'
            parts.append(
                f'<svg x="{place:.2f}%" y="{foot + 12:.1f}"><text{skipped} text-anchor="end" '
                f'transform="rotate(-{TILTED})">{text_lines(words)[0]}</text></svg>'
            )
        foot += 16 + CHARACTER * longest * math.sin(slope)
        aside = max(0.0, CHARACTER * longest * math.cos(slope) - 10)
    else:
        for place, words in shown:
            if x.holds(place):
                parts += [_words(place, foot + 16 + LINE * row, piece) for row, piece in enumerate(text_lines(words))]
        foot += 8 + LINE * lines
        last, words = max(shown)
        half = CHARACTER * max(map(len, words.split("<br>"))) / 2
        beyond = half - (100 - last) / 100 * PHONE
    title = (given.get("title") or {}).get("text", "")
    pieces = [piece for part in title.split("<br>") for piece in wrap(part, TITLE_WIDTH, break_long_words=False)]
    parts += [_words(50, foot + 16 + LINE * row, text_lines(piece)[0]) for row, piece in enumerate(pieces)]
    return foot + 10 + LINE * len(pieces), aside, beyond


def _legend(traces: Sequence[Dict]) -> Iterator[tuple[str, str]]:
    """Name and mark of each kind of mark; none of a chart with a single one that has no name."""
    for trace in traces:
        if not trace.get("name") or trace.get("showlegend") is False or not len(trace["x"]):
            continue
        marker, stroke = trace.get("marker") or {}, trace.get("line") or {}
        drawn = ""
        if "lines" in trace.get("mode", ""):
            drawn += _line(0, 7, 100, 7, stroke)
        if "markers" in trace.get("mode", ""):
            colour = _at(marker.get("color"), 0) or (marker.get("line") or {}).get("color") or stroke.get("color", BLUE)
            symbol = _at(marker.get("symbol"), 0) or "circle"
            drawn += f'<svg x="11" y="7">{mark(symbol, colour, min(12, marker.get("size", 6)), 2)}</svg>'
        yield plain_text(trace["name"]), drawn
