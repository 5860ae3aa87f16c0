"""Plotly figures. Every string in them passes `figure_text`; only finite numbers are drawn."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from q36eval.app.dashboard.escape import figure_text
from q36eval.app.dashboard.verdict_style import AMBER, ORANGE, RED, TEAL
from q36eval.drift import DriftPoint, MetricDrift
from q36eval.reports.plots import BLUE, GREY
from q36eval.reports.text import number

MARGINS = {"l": 10, "r": 10, "t": 40, "b": 10}
BINS_PER_DECADE = 8
SMALLEST_DRAWN = 1e-12
"""Divergences below it are rounding; they and exact zeros share the first bar."""

MOST_TICKS = 3  # the number of dates that fit a small chart


def histogram_figure(divergences: NDArray[np.float64], marks: dict[str, float | None]) -> go.Figure:
    """The number of tokens by divergence, both axes logarithmic, with marks by name ("mean", "noise floor", "margin")
    if known; few tokens are near a mean."""
    finite = divergences[np.isfinite(divergences)]
    top = max(10.0, finite.max(initial=0.0))
    decades = math.log10(top / SMALLEST_DRAWN)
    edges = SMALLEST_DRAWN * 10.0 ** (np.arange(math.ceil(decades * BINS_PER_DECADE) + 2) / BINS_PER_DECADE)
    counts, _ = np.histogram(np.clip(finite, SMALLEST_DRAWN, None), edges)
    figure = go.Figure(
        go.Bar(
            x=np.sqrt(edges[:-1] * edges[1:]),
            y=[int(count) or None for count in counts],
            width=np.diff(edges),
            marker={"color": BLUE, "line": {"width": 0}},
            customdata=np.stack([edges[:-1], edges[1:]], axis=1),
            hovertemplate="%{customdata[0]:.2g} to %{customdata[1]:.2g} nats: %{y} tokens<extra></extra>",
        )
    )
    known = {name: value for name, value in marks.items() if value is not None and 0 < value < math.inf}
    for place, (name, value) in enumerate(known.items()):
        colour = {"noise floor": TEAL, "margin": RED}.get(name, ORANGE)
        figure.add_vline(x=value, line={"color": colour, "dash": "dash", "width": 2})
        # on a logarithmic axis a line is placed by its value, words by its logarithm; rows of words do not collide
        at = {"x": math.log10(value), "y": 1.02 + 0.07 * place, "yref": "paper", "yanchor": "bottom"}
        figure.add_annotation(text=f"{name} {value:.3g}", showarrow=False, **at)
    figure.update_xaxes(type="log", title="KL(ref‖branch) of a token, nats", exponentformat="power", dtick=2)
    most = math.log10(max(2, int(counts.max(initial=0)))) + 0.1
    # a single token is still a bar
    figure.update_yaxes(type="log", title="tokens", range=[math.log10(0.5), most], dtick=1, exponentformat="power")
    figure.update_layout(bargap=0.05, height=340, margin=MARGINS | {"t": 30 + 18 * len(known)})
    return figure


def drift_figure(metric: MetricDrift) -> go.Figure:
    """One metric over its runs, each with its interval. The line breaks where a run does not compare with the blessed
    one; dotted lines are changes of the deployment, a ring is the run since which it drifts."""
    figure, points = go.Figure(), metric.points
    places = {point.run_id: place for place, point in enumerate(points)}
    comparable = [None if point.apart or not math.isfinite(point.effect) else point for point in points]
    apart = [point for point in points if point.apart and math.isfinite(point.effect)]
    named: dict[str, tuple[str, dict[str, object], Sequence[DriftPoint | None]]] = {
        "effect": ("lines+markers", {"color": BLUE, "size": 7}, comparable),
        "does not compare": ("markers", {"color": GREY, "size": 7, "symbol": "circle-open"}, apart),
        "blessed run": ("markers", {"color": AMBER, "size": 14, "symbol": "star"}, _of(points, metric.blessed_run_id)),
        "drifts since": (
            "markers",
            {"color": RED, "size": 13, "symbol": "diamond-open", "line": {"width": 2}},
            _of(points, metric.since_run_id),
        ),
    }
    for name, (mode, marker, of) in named.items():
        if any(of):
            figure.add_trace(
                go.Scatter(
                    name=name,
                    x=[None if point is None else places[point.run_id] for point in of],
                    y=[None if point is None else point.effect for point in of],
                    mode=mode,
                    marker=marker,
                    error_y=_arms(of) if name in ("effect", "does not compare") else None,
                    text=["" if point is None else figure_text(_point_words(point)) for point in of],
                    hovertemplate="%{text}<extra></extra>",
                )
            )
    for point in points:
        if point.identity_changes:
            figure.add_vline(x=places[point.run_id], line={"color": AMBER, "width": 1.5, "dash": "dot"})
    ticks = list(range(len(points)))[::-1][:: max(1, -(-len(points) // MOST_TICKS))]
    labels = [f"{points[place].started:%Y-%m-%d<br>%H:%M}" for place in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=labels, tickangle=0)
    figure.update_yaxes(title=figure_text(metric.unit), automargin=True, nticks=4)
    figure.update_layout(height=190, margin=MARGINS | {"t": 10}, showlegend=False)
    return figure


def _of(points: Sequence[DriftPoint], run_id: str | None) -> list[DriftPoint]:
    return [point for point in points if point.run_id == run_id and math.isfinite(point.effect)]


def _arms(points: Sequence[DriftPoint | None]) -> dict[str, object]:
    """The arms of the intervals; a bound that is not finite has none."""
    above = [0.0 if point is None else point.effect_interval.upper - point.effect for point in points]
    below = [0.0 if point is None else point.effect - point.effect_interval.lower for point in points]
    finite = [[arm if math.isfinite(arm) else 0.0 for arm in arms] for arms in (above, below)]
    return {"type": "data", "symmetric": False, "array": finite[0], "arrayminus": finite[1], "thickness": 1}


def _point_words(point: DriftPoint) -> str:
    interval = point.effect_interval
    words = f"{point.run_id}: effect {number(point.effect)} [{number(interval.lower)}, {number(interval.upper)}]"
    words += f"; does not compare: {', '.join(point.apart)}" if point.apart else ""
    return words + (f"; changed: {', '.join(point.identity_changes)}" if point.identity_changes else "")
