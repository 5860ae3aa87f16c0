"""Plotly figures. Every string in them passes `figure_text`; only finite numbers are drawn."""

import math
from collections.abc import Callable, Sequence
from textwrap import wrap

import plotly.graph_objects as go

from q36eval.app.dashboard.drawing.kl_charts import whiskers
from q36eval.app.dashboard.escape import figure_text
from q36eval.app.dashboard.models.drift import DriftPicture, Mark
from q36eval.app.dashboard.models.run import MarginBar
from q36eval.app.dashboard.verdict_style import AMBER, BLUE, GREEN, GREY, RED, TEAL, VIOLET, look_of
from q36eval.app.figures.canary_items import MarginPoint
from q36eval.app.figures.evals import RecoveryPoint, ScorePair
from q36eval.canaries.outcomes import AT_RISK_NATS

FAINT = "rgba(128,132,140,0.55)"
LOST, GAINED = RED, BLUE
INSIDE = "rgba(46,158,91,0.10)"
TICKS = (-1000, -100, -10, -3, -1, 0, 1, 3, 10, 100, 1000, 10_000)
WIDEST_LINEAR = 4.0
WIDEST_RECOVERY = 2.0


NAME_WIDTH = 46
"""Characters of a criterion's name in one line: what a phone's screen holds. Longer ones break between words."""
NAME_LINE, BAR_LINE, ROW_GAP = 17, 26, 8
"""Pixels of one line of a name, of the bar below it, and before the next."""


def margin_figure(bars: Sequence[MarginBar]) -> go.Figure:
    """Each criterion's loss and interval against its margin, which stands at 1, its name above it.

    Past a few margins the axis turns logarithmic on both sides of zero (asinh), since a loss may be negative.
    """
    reach = max((abs(x) for bar in bars for x in (bar.share, bar.lower, bar.upper) if x is not None), default=1.0)
    logarithmic = reach > WIDEST_LINEAR
    scale: Callable[[float], float] = math.asinh if logarithmic else float
    figure = go.Figure()
    top, places = 0, []
    for bar in bars:
        names = _name_lines(bar)
        at = {"x": 0, "xref": "paper", "xanchor": "left", "y": top + ROW_GAP, "yanchor": "top"}
        figure.add_annotation(text=names, showarrow=False, align="left", font={"size": 13}, **at)
        top += ROW_GAP + NAME_LINE * (1 + names.count("<br>")) + BAR_LINE
        places.append(top - BAR_LINE // 2)
    left = min([0.0, *(x for bar in bars for x in (bar.share, bar.lower) if x is not None)])
    right = max([1.2, *(1.05 * x for bar in bars for x in (bar.share, bar.upper) if x is not None)])
    line = {"color": RED, "width": 2, "dash": "dash"}
    figure.add_vline(x=scale(1.0), line=line, layer="below")
    figure.add_vrect(x0=scale(left * 1.1 - 0.1), x1=scale(1.0), fillcolor=INSIDE, line_width=0, layer="below")
    figure.add_trace(
        go.Scatter(name="the policy's margin", x=[None], y=[None], mode="lines", line=line, hoverinfo="skip")
    )
    for bar, place in zip(bars, places, strict=True):
        figure.add_trace(_bar_trace(bar, place, scale))
    floors = [(scale(bar.floor), place) for bar, place in zip(bars, places, strict=True) if bar.floor is not None]
    if floors:
        figure.add_trace(_floor_trace(floors))
    ticks = [t for t in TICKS if abs(t) <= max(1.0, reach * 1.5)]
    axis = {"tickmode": "array", "tickvals": [scale(t) for t in ticks], "ticktext": [f"{t:g}" for t in ticks]}
    words = "loss, in margins" + (" (logarithmic)" if logarithmic else "") + "<br>below 0: better than the reference"
    figure.update_xaxes(range=[scale(left * 1.1 - 0.1), scale(right)])  # the margin is always in sight
    figure.update_xaxes(title=words, **(axis if logarithmic else {}))
    figure.update_yaxes(range=[top, 0], visible=False)
    legend = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "itemclick": False, "itemdoubleclick": False}
    margin = {"l": 10, "r": 10, "t": 40, "b": 60}
    figure.update_layout(height=top + 100, margin=margin, showlegend=True, legend=legend)
    return figure


def _name_lines(bar: MarginBar) -> str:
    """Verdict and title, then the id in grey; broken between words only."""
    lines = wrap(f"{bar.label}  {bar.title}", NAME_WIDTH, break_long_words=False, break_on_hyphens=False)
    grey = f'<span style="color:{GREY}">{figure_text(bar.id)}</span>'
    fits = len(lines[-1]) + len(bar.id) < NAME_WIDTH
    return "<br>".join(f"<b>{figure_text(part)}</b>" for part in lines) + ("  " if fits else "<br>") + grey


def _bar_trace(bar: MarginBar, place: float, scale: Callable[[float], float]) -> go.Scatter:
    look = look_of(bar.verdict)
    centre = scale(bar.share)
    lower, upper = (None if bound is None else scale(bound) for bound in (bar.lower, bar.upper))
    return go.Scatter(
        x=[centre],
        y=[place],
        mode="markers",
        showlegend=False,
        marker={"color": look.hex_colour, "symbol": look.marker, "size": 11},
        error_x=whiskers([(centre, lower, upper)], color=look.hex_colour, thickness=2),
        text=[figure_text(f"{bar.title} {bar.label}: {bar.detail}")],
        hovertemplate="%{text}<extra></extra>",
    )


def _floor_trace(places: Sequence[tuple[float, float]]) -> go.Scatter:
    """What the reference loses against itself, as an upright mark in each row that has one."""
    return go.Scatter(
        name="noise floor: the reference against itself",
        x=[x for x, _ in places],
        y=[y for _, y in places],
        mode="markers",
        marker={"symbol": "line-ns", "size": 14, "line": {"width": 2, "color": BLUE}},
        hoverinfo="skip",
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
            error_x=whiskers([(point.value, point.lower, point.upper) for point in points]),
            text=[figure_text(point.detail) for point in points],
            hovertemplate="%{text}<extra></extra>",
        )
    )
    figure.add_vline(x=1.0, line={"color": FAINT, "dash": "dash"})
    # an interval over a handful of items may reach ten times the reference: what is near it must stay to be seen
    figure.update_xaxes(title="recovery, branch over reference", tickformat=".0%", range=[0.0, _reach(points)])
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
    figure.update_xaxes(title="score, share of items answered rightly", tickformat=".0%", range=[-0.03, 1.03])
    figure.update_yaxes(type="category", autorange="reversed", automargin=True)
    margin, legend = {"l": 10, "r": 10, "t": 30, "b": 10}, {"orientation": "h", "y": 1.0, "yanchor": "bottom"}
    figure.update_layout(height=110 + 22 * len(pairs), margin=margin, legend=legend)
    return figure


AT_RISK = "rgba(201,133,0,0.12)"
LOOKS = {
    "regression": (RED, "x"),
    "improvement": (BLUE, "triangle-up"),
    "both right": (GREEN, "circle"),
    "both wrong": (GREY, "square-open"),
    "not scored": (VIOLET, "diamond-open"),
}
"""Colour and symbol by outcome; the symbol says it without the colour."""


def margin_scatter(points: Sequence[MarginPoint]) -> go.Figure:
    """Each question's decisive margin, reference against branch; below the diagonal it shrank, below zero it turned."""
    figure = go.Figure()
    values = [value for point in points for value in (point.reference, point.branch)]
    low, high = min([0.0, *values]), max([1.0, *values])
    figure.add_hrect(y0=min(low, 0.0), y1=AT_RISK_NATS, fillcolor=AT_RISK, line_width=0, layer="below")
    line = {"color": FAINT, "dash": "dash"}
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


APART = GREY
MOST_TICKS = 4  # so many dates stand side by side on a phone


def drift_figure(picture: DriftPicture, unit: str) -> go.Figure:
    """One metric over its runs, in that unit. Lines break where runs cannot be compared."""
    figure = go.Figure()
    if picture.band is not None:
        low, high = picture.band
        figure.add_hrect(y0=low, y1=high, fillcolor=APART, opacity=0.18, line_width=0, layer="below")
    for name, value, colour, dash in (
        ("margin", picture.margin, RED, "dash"),
        ("noise floor", picture.floor, TEAL, "dashdot"),
    ):
        if value is not None:
            figure.add_trace(_level(name, value, len(picture.labels), {"color": colour, "dash": dash, "width": 1.5}))
    for i, marks in enumerate(picture.lines):
        figure.add_trace(_effects("effect", marks, BLUE, "circle", "lines+markers", i == 0))
    if picture.apart:
        figure.add_trace(_effects("does not compare", picture.apart, APART, "circle-open", "markers", True))
    if picture.baseline:
        figure.add_trace(_effects("blessed run", picture.baseline, AMBER, "star", "markers", True))
    for place, _ in picture.changes:
        figure.add_vline(x=place, line={"color": AMBER, "width": 1.5, "dash": "dot"})
    if picture.since:
        ring = {"color": RED, "symbol": "diamond-open", "size": 13, "line": {"width": 2}}
        x, y = [mark.place for mark in picture.since], [mark.y for mark in picture.since]
        figure.add_trace(go.Scatter(name="drifts since", x=x, y=y, mode="markers", marker=ring, hoverinfo="skip"))
    _lay_out(figure, picture, unit)
    return figure


def _level(name: str, value: float, n: int, line: dict[str, object]) -> go.Scatter:
    """A trace, and not a shape, for the axis reaches as far as traces do."""
    hover = f"{name} {value:.4g}<extra></extra>"
    return go.Scatter(name=name, x=[-0.6, n - 0.4], y=[value, value], mode="lines", line=line, hovertemplate=hover)


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


def _lay_out(figure: go.Figure, picture: DriftPicture, unit: str) -> None:
    n = len(picture.labels)
    step = max(1, -(-n // MOST_TICKS))
    ticks = list(range(n))[::-1][::step]
    labels = [figure_text(picture.labels[place]) for place in ticks]
    figure.update_xaxes(
        tickvals=ticks, ticktext=[label.replace(" ", "<br>") for label in labels], range=[-0.6, n - 0.4], tickangle=0
    )
    figure.update_xaxes(title="start of the run, UTC")
    figure.update_yaxes(title=f"effect, {figure_text(unit)}", automargin=True)
    figure.update_layout(
        height=280,
        margin={"l": 10, "r": 10, "t": 34, "b": 10},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        showlegend=True,
    )
