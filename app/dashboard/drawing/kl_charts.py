"""Plotly figures of a KL run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from q36eval.app.dashboard.escape import figure_text
from q36eval.app.dashboard.verdict_style import BLUE, ORANGE, RED, TEAL
from q36eval.app.figures.kl import Point

BINS_PER_DECADE = 8
SMALLEST_DRAWN = 1e-12
"""Divergences below it are rounding; they and exact zeros share the first bar."""

FAR_APART = 20.0
HEIGHT = 340

DIRECTIONS = {"restored": "restored: KL falls by", "alone": "alone: KL is"}
"""Of an attribution: which way a part was tried."""


def divergences_of(path: Path) -> NDArray[np.float64]:
    """KL(p || q) of every token of a run's tokens file, in nats."""
    import pyarrow.parquet as pq

    column: NDArray[np.float64] = pq.read_table(path, columns=["forward_kl"])["forward_kl"].to_numpy()
    return column.astype(np.float64)


@dataclass(frozen=True)
class Mark:
    """A value that a figure is held against: its name, and how it is drawn."""

    name: str
    value: float
    colour: str
    dash: str


def marks_of(mean: float | None, floor: float | None, margin: float | None) -> list[Mark]:
    """The run's mean, its noise floor and the policy's margin, as far as each is known and can be drawn."""
    kinds = (("mean", mean, ORANGE, "dash"), ("noise floor", floor, TEAL, "dot"), ("margin", margin, RED, "solid"))
    return [
        Mark(name, value, colour, dash)
        for name, value, colour, dash in kinds
        if value is not None and value > 0 and math.isfinite(value)
    ]


def histogram_figure(divergences: NDArray[np.float64], marks: Sequence[Mark] = ()) -> go.Figure:
    """How many tokens diverge by how much, both axes logarithmic; a mean lies where few tokens do."""
    edges, counts = binned(divergences)
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
    for place, mark in enumerate(marks):
        figure.add_vline(x=mark.value, line={"color": mark.colour, "dash": mark.dash, "width": 2})
        # on a logarithmic axis a line is placed by its value, words by its logarithm; rows of words do not collide
        figure.add_annotation(
            x=math.log10(mark.value),
            y=1.02 + 0.07 * place,
            yref="paper",
            text=figure_text(f"{mark.name} {mark.value:.3g}"),
            showarrow=False,
            yanchor="bottom",
        )
    title = f"KL(ref‖branch) of a token, nats (the first bar: up to {SMALLEST_DRAWN:g}, zero included)"
    figure.update_xaxes(type="log", title=title, exponentformat="power", dtick=2)
    top = math.log10(max(2, int(counts.max(initial=0)))) + 0.1
    # a single token is still a bar
    figure.update_yaxes(type="log", title="tokens", range=[math.log10(0.5), top], dtick=1, exponentformat="power")
    figure.update_layout(bargap=0.05)
    return _laid_out(figure, top=30 + 18 * len(marks))


def binned(divergences: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Edges of bars alike in width on a logarithmic axis, and how many finite divergences lie within each."""
    finite = divergences[np.isfinite(divergences)]
    edges = 10.0 ** np.arange(
        math.log10(SMALLEST_DRAWN), math.log10(max(10.0, finite.max(initial=0.0))) + 1e-9, 1 / BINS_PER_DECADE
    )
    edges = np.append(edges, edges[-1] * 10.0 ** (1 / BINS_PER_DECADE))
    counts, _ = np.histogram(np.clip(finite, SMALLEST_DRAWN, None), edges)
    return edges, counts


def points_figure(
    points: Sequence[Point],
    title: str,
    *,
    line: bool = False,
    held_against: Mapping[str, Mapping[str, float]] | None = None,
) -> go.Figure:
    """Each group's mean KL with its interval; a point whose interval is not identified stands alone, hollow.

    `held_against` gives by name what else is known of some groups ("margin", "noise floor"), drawn as a dash at each.
    The axis is logarithmic where the groups lie far apart and all that is drawn is above zero.
    """
    figure = series_figure({"": points}, title, [BLUE], line=line)
    drawn = [v for point in points for v in (point.mean, point.lower, point.upper) if v is not None]
    drawn += [value for values in (held_against or {}).values() for value in values.values()]
    if drawn and min(drawn) > 0 and max(drawn) > FAR_APART * min(drawn):
        figure.update_yaxes(type="log", rangemode="normal", dtick=1)
    names = {figure_text(point.name) for point in points}
    for name, values in (held_against or {}).items():
        known = {figure_text(group): value for group, value in values.items() if figure_text(group) in names}
        if known:
            figure.add_trace(_dashes(name, known))
    return figure


def _dashes(name: str, values: Mapping[str, float]) -> go.Scatter:
    colour, symbol = (RED, "line-ew-open") if name == "margin" else (TEAL, "triangle-up-open")
    return go.Scatter(
        name=figure_text(name),
        x=list(values),
        y=list(values.values()),
        mode="markers",
        marker={"color": colour, "symbol": symbol, "size": 22 if name == "margin" else 9, "line": {"width": 2}},
        hovertemplate="%{x}: " + figure_text(name) + " %{y:.3g} nats/token<extra></extra>",
        showlegend=True,
    )


def series_figure(
    series: Mapping[str, Sequence[Point]], title: str, colors: Sequence[str], *, line: bool = False
) -> go.Figure:
    """As `points_figure`, with several series by name."""
    figure = go.Figure()
    for (name, points), color in zip(series.items(), colors, strict=False):
        drawn = [point for point in points if math.isfinite(point.mean)]
        whole = [point.lower is not None and point.upper is not None for point in drawn]
        figure.add_trace(
            go.Scatter(
                name=figure_text(name),
                x=[figure_text(point.name) for point in drawn],
                y=[point.mean for point in drawn],
                mode="lines+markers" if line else "markers",
                line={"color": color},
                marker={"color": color, "size": 9, "symbol": ["circle" if w else "circle-open" for w in whole]},
                error_y=whiskers([(point.mean, point.lower, point.upper) for point in drawn], color=color),
                customdata=[[point.tokens] for point in drawn],
                hovertemplate="%{x}: %{y:.3g} nats/token over %{customdata[0]} tokens<extra></extra>",
                showlegend=len(series) > 1,
            )
        )
    figure.update_xaxes(title=title, type="category", automargin=True)
    figure.update_yaxes(title="KL(ref‖branch), nats/token", rangemode="tozero", exponentformat="power")
    if len(series) > 1:  # side by side, or one would hide the other's interval
        figure.update_layout(scattermode="group", scattergap=0.75)
    return _laid_out(figure)


def whiskers(intervals: Iterable[tuple[float, float | None, float | None]], **style: Any) -> dict[str, Any]:
    """The arms of (value, lower, upper); a bound that is not known has none."""
    arms = [(v if lower is None else lower, v, v if upper is None else upper) for v, lower, upper in intervals]
    above, below = [upper - v for _, v, upper in arms], [v - lower for lower, v, _ in arms]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def layers_figure(layers: Mapping[str, Sequence[Point]], title: str = "layers") -> go.Figure:
    """What each part costs, from an attribution: quantized alone, and what restoring it gives back."""
    return series_figure(
        {words: layers[key] for key, words in DIRECTIONS.items() if key in layers}, title, [BLUE, ORANGE]
    )


def _laid_out(figure: go.Figure, top: int = 30) -> go.Figure:
    margin = {"l": 10, "r": 10, "t": top, "b": 10}
    legend = {"orientation": "h", "y": 1.12}
    figure.update_layout(height=HEIGHT, margin=margin, template="plotly_white", legend=legend)
    return figure
