"""The drift chart: a metric's effect over the runs above, its control charts below. Strings pass `figure_text`."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from q36eval.app.dashboard.inert import figure_text
from q36eval.app.dashboard.models.drift import ControlLine, DriftPicture, Mark

GREY, BLUE, AMBER, RED = "#8a8f98", "#3b7dd8", "#c98500", "#e0483e"
MOST_TICKS = 8
CONTROL = {"EWMA": ("#3b7dd8", "solid"), "CUSUM up": ("#9468d6", "dash"), "CUSUM down": ("#9468d6", "dash")}
CONTROL |= {"change of level": ("#2e9e5b", "dot")}


def drift_figure(picture: DriftPicture, baseline: str) -> go.Figure:
    """One metric over its runs; `baseline` says what the starred run is.

    Lines break where runs cannot be compared. Below, each control chart is a share of its own limit, so that one
    pair of limits at 1 and -1 does for all of them.
    """
    charted = bool(picture.control)
    rows, heights = (2, [0.62, 0.38]) if charted else (1, [1.0])
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=heights)
    if picture.band is not None:
        low, high = picture.band
        figure.add_hrect(y0=low, y1=high, fillcolor=GREY, opacity=0.18, line_width=0, layer="below", row=1, col=1)
    for i, marks in enumerate(picture.lines):
        figure.add_trace(_effects("effect", marks, BLUE, "circle", "lines+markers", i == 0), row=1, col=1)
    if picture.apart:
        figure.add_trace(
            _effects("does not compare", picture.apart, GREY, "circle-open", "markers", True), row=1, col=1
        )
    if picture.baseline:
        figure.add_trace(_effects(baseline, picture.baseline, AMBER, "star", "markers", True), row=1, col=1)
    for place, _ in picture.changes:
        figure.add_vline(x=place, line={"color": AMBER, "width": 1.5, "dash": "dot"})
    _mark_signals(figure, picture)
    for line in picture.control:
        figure.add_trace(_control(line), row=2, col=1)
    for limit in (1.0, -1.0) if charted else ():
        figure.add_hline(y=limit, line={"color": RED, "dash": "dash", "width": 1.5}, row=2, col=1)
    _lay_out(figure, picture, charted)
    return figure


def _effects(name: str, marks: tuple[Mark, ...], colour: str, symbol: str, mode: str, named: bool) -> go.Scatter:
    return go.Scatter(
        name=name,
        legendgroup=name,
        showlegend=named,
        x=[mark.place for mark in marks],
        y=[mark.y for mark in marks],
        mode=mode,
        line={"color": colour},
        marker={"color": colour, "symbol": symbol, "size": 14 if symbol == "star" else 7},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [mark.above for mark in marks],
            "arrayminus": [mark.below for mark in marks],
            "color": colour,
            "thickness": 1,
        },
        text=[figure_text(mark.detail) for mark in marks],
        hovertemplate="%{text}<extra></extra>",
    )


def _mark_signals(figure: go.Figure, picture: DriftPicture) -> None:
    """A ring about every run after which a chart was beyond its limit."""
    marks = [mark for line in picture.lines for mark in line if mark.place in picture.signals]
    if marks:
        ring = {"color": RED, "symbol": "diamond-open", "size": 13, "line": {"width": 2}}
        x, y = [mark.place for mark in marks], [mark.y for mark in marks]
        figure.add_trace(
            go.Scatter(name="signal", x=x, y=y, mode="markers", marker=ring, hoverinfo="skip"), row=1, col=1
        )


def _control(line: ControlLine) -> go.Scatter:
    colour, dash = CONTROL[line.name]
    return go.Scatter(
        name=line.name.removesuffix(" up"),
        legendgroup=line.name.partition(" ")[0],
        showlegend=line.name != "CUSUM down",
        x=list(line.places),
        y=list(line.shares),
        mode="lines+markers",
        connectgaps=False,
        line={"color": colour, "dash": dash, "width": 1.5},
        marker={"size": 4},
        hovertemplate=f"{line.name}: %{{y:.2f}} of its limit<extra></extra>",
    )


def _lay_out(figure: go.Figure, picture: DriftPicture, charted: bool) -> None:
    n = len(picture.labels)
    step = max(1, -(-n // MOST_TICKS))
    ticks = list(range(n))[::-1][::step]
    labels = [figure_text(picture.labels[place]) for place in ticks]
    figure.update_xaxes(
        tickvals=ticks, ticktext=[label.replace(" ", "<br>") for label in labels], range=[-0.6, n - 0.4]
    )
    figure.update_yaxes(title="effect", automargin=True, row=1, col=1)
    if charted:
        figure.update_yaxes(title="of the limit", automargin=True, row=2, col=1)
    figure.update_layout(
        height=400 if charted else 280,
        margin={"l": 10, "r": 10, "t": 34, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        showlegend=True,
    )
