"""Plotly figures. Every string in them passes `figure_text`; only finite numbers are drawn."""

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from q36eval.app.dashboard.inert import figure_text
from q36eval.app.dashboard.look import look_of
from q36eval.app.dashboard.models.evals import RecoveryPoint, ScorePair
from q36eval.app.dashboard.models.run import MarginBar

GREY = "rgba(128,132,140,0.55)"
LOST, GAINED = "#e0483e", "#3b7dd8"
INSIDE = "rgba(46,158,91,0.10)"
TICKS = (-1000, -100, -10, -3, -1, 0, 1, 3, 10, 100, 1000, 10_000)
WIDEST_LINEAR = 4.0
WIDEST_RECOVERY = 2.0


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
    right = max([1.2, *(1.05 * x for bar in bars for x in (bar.share, bar.upper) if x is not None)])
    figure.update_xaxes(range=[scale(left * 1.1 - 0.1), scale(right)])  # the margin is always in sight
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
            marker={"color": GAINED, "size": 9, "symbol": ["circle" if w else "circle-open" for w in whole]},
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
    # an interval over a handful of items may reach ten times the reference: what is near it must stay to be seen
    figure.update_xaxes(title="recovery: branch / reference", tickformat=".0%", range=[0.0, _reach(points)])
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    figure.update_layout(height=90 + 22 * len(points), margin={"l": 10, "r": 10, "t": 10, "b": 10}, showlegend=False)
    return figure


def _reach(points: Sequence[RecoveryPoint]) -> float:
    greatest = max((point.value if point.upper is None else point.upper for point in points), default=1.0)
    return max(WIDEST_RECOVERY if greatest > WIDEST_RECOVERY else greatest, *(p.value for p in points), 1.0) * 1.05


def scores_figure(pairs: Sequence[ScorePair]) -> go.Figure:
    """Each task's score under the reference (hollow) and the branch (filled), joined by a line."""
    figure = go.Figure()
    rows = [figure_text(pair.name) for pair in pairs]
    for row, pair in zip(rows, pairs, strict=True):
        colour = LOST if pair.branch < pair.reference else GAINED
        line = {"color": colour, "width": 2}
        figure.add_shape(type="line", x0=pair.reference, x1=pair.branch, y0=row, y1=row, line=line, layer="below")
    for name, symbol, values in (
        ("reference", "circle-open", [pair.reference for pair in pairs]),
        ("branch", "circle", [pair.branch for pair in pairs]),
    ):
        figure.add_trace(
            go.Scatter(
                name=name,
                x=values,
                y=rows,
                mode="markers",
                marker={"color": GAINED, "size": 10, "symbol": symbol, "line": {"width": 2}},
                customdata=[[pair.items] for pair in pairs],
                hovertemplate="%{y}: " + name + " %{x:.1%} of %{customdata[0]} items<extra></extra>",
            )
        )
    figure.update_xaxes(title="score", tickformat=".0%", range=[-0.03, 1.03])
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    margin, legend = {"l": 10, "r": 10, "t": 30, "b": 10}, {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
    figure.update_layout(height=110 + 22 * len(pairs), margin=margin, legend=legend)
    return figure
