"""Plotly figures. Every string in them passes `figure_text`; only finite numbers are drawn."""

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from app.dashboard.evals_model import RecoveryPoint
from app.dashboard.inert import figure_text
from app.dashboard.look import look_of
from app.dashboard.run_model import MarginBar

GREY = "rgba(128,132,140,0.55)"
INSIDE = "rgba(46,158,91,0.10)"
TICKS = (-1000, -100, -10, -3, -1, 0, 1, 3, 10, 100, 1000, 10_000)
WIDEST_LINEAR = 4.0


def margin_figure(bars: Sequence[MarginBar]) -> go.Figure:
    """Each criterion's loss and interval against its margin, which stands at 1.

    Past a few margins the axis turns logarithmic on both sides of zero (asinh), since a loss may be negative.
    """
    reach = max((abs(x) for bar in bars for x in (bar.share, bar.lower, bar.upper) if x is not None), default=1.0)
    logarithmic = reach > WIDEST_LINEAR
    scale: Callable[[float], float] = math.asinh if logarithmic else float
    figure = go.Figure()
    figure.add_vline(x=scale(1.0), line={"color": "#e0483e", "width": 2, "dash": "dash"})
    for bar in bars:
        figure.add_trace(_bar_trace(bar, scale))
    left = min([0.0, *(x for bar in bars for x in (bar.share, bar.lower) if x is not None)])
    figure.add_vrect(x0=scale(left * 1.1 - 0.1), x1=scale(1.0), fillcolor=INSIDE, line_width=0, layer="below")
    ticks = [t for t in TICKS if abs(t) <= max(1.0, reach * 1.5)]
    axis = {"tickmode": "array", "tickvals": [scale(t) for t in ticks], "ticktext": [f"{t:g}" for t in ticks]}
    words = "share of the margin used (1 = all of it; below 0 = better than the reference)"
    figure.update_xaxes(title=words + (", logarithmic" if logarithmic else ""), **(axis if logarithmic else {}))
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(height=90 + 34 * len(bars), margin={"l": 10, "r": 10, "t": 10, "b": 10}, showlegend=False)
    return figure


def _bar_trace(bar: MarginBar, scale: Callable[[float], float]) -> go.Scatter:
    look = look_of(bar.verdict)
    centre = scale(bar.share)
    return go.Scatter(
        x=[centre],
        y=[figure_text(f"{bar.id}  {bar.label}")],
        mode="markers",
        marker={"color": look.hex_colour, "symbol": look.marker, "size": 11},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [0.0 if bar.upper is None else scale(bar.upper) - centre],
            "arrayminus": [0.0 if bar.lower is None else centre - scale(bar.lower)],
            "color": look.hex_colour,
            "thickness": 2,
        },
        text=[figure_text(f"{bar.id} {bar.label}: {bar.detail}")],
        hovertemplate="%{text}<extra></extra>",
    )


def recovery_figure(points: Sequence[RecoveryPoint]) -> go.Figure:
    """Recovery with its interval, one row each; hollow where the interval is not identified, a line at 100 %."""
    whole = [point.lower is not None and point.upper is not None for point in points]
    figure = go.Figure(
        go.Scatter(
            x=[point.value for point in points],
            y=[figure_text(point.name) for point in points],
            mode="markers",
            marker={"color": "#3b6fb6", "size": 9, "symbol": ["circle" if w else "circle-open" for w in whole]},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [0.0 if point.upper is None else point.upper - point.value for point in points],
                "arrayminus": [0.0 if point.lower is None else point.value - point.lower for point in points],
            },
            text=[figure_text(point.detail) for point in points],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    figure.add_vline(x=1.0, line={"color": GREY, "dash": "dash"})
    figure.update_xaxes(title="recovery: branch / reference", tickformat=".0%")
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    figure.update_layout(height=90 + 22 * len(points), margin={"l": 10, "r": 10, "t": 10, "b": 10}, showlegend=False)
    return figure
