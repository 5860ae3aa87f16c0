"""Tables as HTML: cells wrap, a row may hold its plot, on a phone every row is a card. Pure; all text is escaped."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from q36eval.app.dashboard.escape import line
from q36eval.reports.plots import MARK, Axis, Row

MARKED = frozenset({*MARK.values(), "▲", "▼"})
"""First characters by which the style sheet colours a cell."""

SHORT = 28
"""Characters of a cell that is not broken: a figure with its interval."""


@dataclass(frozen=True)
class Plot:
    """The figures of a table's rows against one axis, None for a row without any; `margin` is one limit for all rows.

    Of rows whose names are in `few` the dot is hollow and no interval is drawn; `few_words` says why, in the legend.
    """

    points: Sequence[Row | None]
    axis: Axis
    margin: float | None = None
    few: Collection[str] = ()
    few_words: str = ""

    def place(self, value: float) -> float:
        """Where a value lies along the axis in %, at an end where it lies beyond."""
        low, high, at = self.axis.low, self.axis.high, min(max(value, self.axis.low), self.axis.high)
        if self.axis.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(at)
        return 100 * (at - low) / (high - low)


def table_html(rows: Sequence[Mapping[str, str]], alt: str, plot: Plot | None = None) -> str:
    """The rows as a table; the plot is its second column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    heads = [f'<th scope="col">{escape(line(name))}</th>' for name in columns]
    body = [[_cell(name, row.get(name, "")) for name in columns] for row in rows]
    if plot is not None and any(plot.points):
        heads.insert(1, _axis(plot))
        for cells, point in zip(body, plot.points, strict=True):
            cells.insert(1, f'<td class="plot">{"" if point is None else _drawn(point, plot)}</td>')
    lines = "".join(f"<tr>{''.join(cells)}</tr>" for cells in body)
    legend = "" if plot is None else _legend(plot)
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'<table class="q36-table" aria-label="{escape(line(alt))}">{legend}{head}<tbody>{lines}</tbody></table>'


def _cell(name: str, value: str) -> str:
    look, text = ' class="short"' if len(value) <= SHORT else "", escape(line(value))
    if value[:1] in MARKED:
        look, text = f'{look} data-mark="{value[0]}"', f"<b>{value[0]}</b>{text[1:]}"
    return f'<td data-of="{escape(line(name))}"{look}>{text}</td>'


def _axis(plot: Plot) -> str:
    ticks = plot.axis.ticks.items()
    spans = "".join(f'<span style="left: {plot.place(at):.2f}%">{escape(words)}</span>' for at, words in ticks)
    return f'<th class="plot" scope="col">{spans}<small>{escape(line(plot.axis.title))}</small></th>'


def _legend(plot: Plot) -> str:
    known = [point for point in plot.points if point is not None]
    meant = {
        "limit": "margin" if any(point.limit is not None for point in known) else "",
        "floor": "noise floor" if any(point.floor is not None for point in known) else "",
        "dot hollow": plot.few_words if any(point.name in plot.few for point in known) else "",
    }
    words = "".join(f'<i class="{kind}"></i>{escape(said)}' for kind, said in meant.items() if said)
    return f"<caption>{words}</caption>" if words else ""


def _drawn(point: Row, plot: Plot) -> str:
    """A dot at the value, a bar over the interval, an arrow where it runs over an end of the axis, and the marks."""
    axis, few, colour = plot.axis, point.name in plot.few, f"background: {point.colour}; color: {point.colour}"
    parts = [f'<i class="tick" style="left: {plot.place(tick):.2f}%"></i>' for tick in axis.ticks]
    if plot.margin is not None:
        parts.append(f'<i class="inside" style="width: {plot.place(plot.margin):.2f}%"></i>')
    reached = [x for x in (point.value, *(() if few else (point.lower, point.upper))) if not math.isnan(x)]
    if len(reached) == 3:
        low, high = plot.place(point.lower), plot.place(point.upper)
        parts.append(f'<i class="bar" style="left: {low:.2f}%; width: {high - low:.2f}%; {colour}"></i>')
    ends = (("left", min(reached, default=axis.low) < axis.low), ("right", max(reached, default=axis.low) > axis.high))
    parts += [f'<i class="{side}" style="{colour}"></i>' for side, runs_over in ends if runs_over]
    if axis.low <= point.value <= axis.high:
        look = f'class="dot{" hollow" * few}" style="left: {plot.place(point.value):.2f}%; {colour}"'
        parts.append(f"<i {look}></i>")
    for kind, mark in (("limit", point.limit), ("floor", point.floor)):
        if mark is not None and axis.low <= mark <= axis.high:
            parts.append(f'<i class="{kind}" style="left: {plot.place(mark):.2f}%"></i>')
    return f'<span title="{escape(line(f"{point.name}: {point.words}"))}">{"".join(parts)}</span>'
