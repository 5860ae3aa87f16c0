"""Plotly figures of a KL run, for the dashboard and for a page of their own. Never imports torch."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.dashboard.inert import figure_text
from app.kl_model import Point

BINS_PER_DECADE = 8
SMALLEST_DRAWN = 1e-12
"""Divergences below it are rounding; they and exact zeros share the first bar."""

BLUE, ORANGE, RED = "#3b6fb6", "#d98032", "#e0483e"
HEIGHT = 340


def divergences_of(path: Path) -> NDArray[np.float64]:
    """KL(p || q) of every token of a run's tokens file, in nats."""
    import pyarrow.parquet as pq

    column: NDArray[np.float64] = pq.read_table(path, columns=["forward_kl"])["forward_kl"].to_numpy()
    return column.astype(np.float64)


def histogram_figure(divergences: NDArray[np.float64], mean: float | None = None) -> go.Figure:
    """How many tokens diverge by how much, both axes logarithmic; the mean lies where few tokens do."""
    finite = divergences[np.isfinite(divergences)]
    edges = 10.0 ** np.arange(
        math.log10(SMALLEST_DRAWN), math.log10(max(10.0, finite.max(initial=0.0))) + 1e-9, 1 / BINS_PER_DECADE
    )
    edges = np.append(edges, edges[-1] * 10.0 ** (1 / BINS_PER_DECADE))
    counts, _ = np.histogram(np.clip(finite, SMALLEST_DRAWN, None), edges)
    middles = np.sqrt(edges[:-1] * edges[1:])
    figure = go.Figure(
        go.Bar(
            x=middles,
            y=[int(count) or None for count in counts],
            width=np.diff(edges),
            marker_color=BLUE,
            customdata=np.stack([edges[:-1], edges[1:]], axis=1),
            hovertemplate="%{customdata[0]:.2g} to %{customdata[1]:.2g} nats: %{y} tokens<extra></extra>",
        )
    )
    if mean is not None and mean > 0 and math.isfinite(mean):
        figure.add_vline(x=mean, line={"color": ORANGE, "dash": "dash"})
        # on a logarithmic axis a line is placed by its value, words by its logarithm
        figure.add_annotation(
            x=math.log10(mean), y=1.0, yref="paper", text=f"mean {mean:.3g}", showarrow=False, yanchor="bottom"
        )
    title = f"KL(ref‖branch) of a token, nats (the first bar: up to {SMALLEST_DRAWN:g}, zero included)"
    figure.update_xaxes(type="log", title=title, exponentformat="power")
    top = math.log10(max(2, int(counts.max(initial=0)))) + 0.1
    figure.update_yaxes(type="log", title="tokens", range=[math.log10(0.5), top])  # a single token is still a bar
    return _laid_out(figure)


def points_figure(points: Sequence[Point], title: str, color: str = BLUE, *, line: bool = False) -> go.Figure:
    """Each group's mean KL with its interval; a point whose interval is not identified stands alone, hollow."""
    return series_figure({"": points}, title, [color], line=line)


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
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [0.0 if point.upper is None else point.upper - point.mean for point in drawn],
                    "arrayminus": [0.0 if point.lower is None else point.mean - point.lower for point in drawn],
                    "color": color,
                },
                customdata=[[point.tokens] for point in drawn],
                hovertemplate="%{x}: %{y:.3g} nats/token over %{customdata[0]} tokens<extra></extra>",
                showlegend=len(series) > 1,
            )
        )
    figure.update_xaxes(title=title, type="category", automargin=True)
    figure.update_yaxes(title="KL(ref‖branch), nats/token", rangemode="tozero", exponentformat="power")
    return _laid_out(figure)


def layers_figure(layers: Mapping[str, Sequence[Point]]) -> go.Figure:
    """What each run of layers costs, from an attribution: quantized alone, and what restoring it gives back."""
    names = {"restored": "restored: KL falls by", "alone": "alone: KL is"}
    return series_figure({names[key]: layers[key] for key in names if key in layers}, "layers", [BLUE, ORANGE])


def write_page(path: Path, heading: str, figures: Mapping[str, go.Figure]) -> None:
    """All figures with their titles in one HTML file that needs nothing else."""
    parts = [f"<h1>{figure_text(heading)}</h1>"]
    for number, (title, figure) in enumerate(figures.items()):
        plot = figure.to_html(include_plotlyjs=number == 0, full_html=False)
        parts.append(f"<h2>{figure_text(title)}</h2>{plot}")
    body = "\n".join(parts)
    head = f"<meta charset='utf-8'><title>{figure_text(heading)}</title><style>body{{font-family:sans-serif}}</style>"
    path.write_text(f"<!doctype html><html><head>{head}</head><body>{body}</body></html>", encoding="utf-8")


def _laid_out(figure: go.Figure) -> go.Figure:
    figure.update_layout(height=HEIGHT, margin={"l": 10, "r": 10, "t": 30, "b": 10}, template="plotly_white")
    return figure
