"""The canary page's figure. Every string in it passes `figure_text`; only finite numbers are drawn."""

from collections.abc import Sequence

import plotly.graph_objects as go

from q36eval.app.dashboard.drawing.charts import GREY
from q36eval.app.dashboard.inert import figure_text
from q36eval.app.dashboard.models.canaries import MarginPoint
from q36eval.canaries.outcomes import AT_RISK_NATS

AT_RISK = "rgba(201,133,0,0.12)"
LOOKS = {
    "regression": ("#e0483e", "x"),
    "improvement": ("#3b7dd8", "triangle-up"),
    "both right": ("#2e9e5b", "circle"),
    "both wrong": ("#8a8f98", "square-open"),
    "not scored": ("#9468d6", "diamond-open"),
}
"""Colour and symbol by outcome; the symbol says it without the colour."""


def margin_scatter(points: Sequence[MarginPoint]) -> go.Figure:
    """Each question's decisive margin, reference against branch; below the diagonal it shrank, below zero it turned."""
    figure = go.Figure()
    values = [value for point in points for value in (point.reference, point.branch)]
    low, high = min([0.0, *values]), max([1.0, *values])
    figure.add_hrect(y0=min(low, 0.0), y1=AT_RISK_NATS, fillcolor=AT_RISK, line_width=0, layer="below")
    line = {"color": GREY, "dash": "dash"}
    figure.add_shape(type="line", x0=low, y0=low, x1=high, y1=high, line=line)
    for outcome, (colour, symbol) in LOOKS.items():
        chosen = [point for point in points if point.outcome == outcome]
        if chosen:
            figure.add_trace(_trace(outcome, chosen, colour, symbol))
    figure.update_xaxes(title="reference's margin, nats")
    figure.update_yaxes(title="branch's margin, nats", automargin=True)
    figure.update_layout(
        height=380, margin={"l": 10, "r": 10, "t": 10, "b": 10}, legend={"orientation": "h", "y": 1.12}, showlegend=True
    )
    return figure


def _trace(outcome: str, points: Sequence[MarginPoint], colour: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        name=outcome,
        x=[point.reference for point in points],
        y=[point.branch for point in points],
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 8},
        text=[figure_text(point.detail) for point in points],
        hovertemplate="%{text}<extra></extra>",
    )
