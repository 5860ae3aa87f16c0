"""Tables as HTML: cells wrap, a row may hold its plot, on a phone every row is a card. Pure; all text is escaped."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from q36eval.inert_text import html
from q36eval.reports.plots import MARK, Axis, Row
from q36eval.reports.templates import render

FOLDER = Path(__file__).parent
"""The folder of the templates and the style sheet."""

TERMS = {
    "lanes": "The two uses that are judged separately: structured output (JSON, tool calls) and free-form text.",
    "blessed": "Accepted by a reviewer as the level to hold; drift is measured against the blessed run.",
    "recovery": "The branch's score divided by the reference's, over the same items.",
    "decisive margin": "By how many nats the branch prefers the right choice where an answer turns on one token.",
    "noise floor": "How far the reference differs from itself when nothing is changed.",
    "margin": "How much worse than the reference the branch may be.",
}
"""Words with an explanation under the pointer."""

MARKED = frozenset({*MARK.values(), "▲", "▼"})
"""First characters by which the style sheet colours a cell."""


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


def table_html(rows: Sequence[Mapping[str, str]], alt: str, plot: Plot | None = None) -> str:
    """The rows as a table; the plot is its second column."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    plot = plot if plot is not None and any(plot.points) else None

    def percent(value: float) -> str:
        return "" if plot is None else f"{100 * plot.axis.share(value):.2f}%"

    given = {"rows": rows, "columns": columns, "alt": alt, "plot": plot, "percent": percent, "marked": MARKED}
    return render("table.html.j2", html, FOLDER, **given, finite=math.isfinite, terms=TERMS).strip()
