"""The plot of an attribution: KL by class and by layer, both directions, with intervals. One self-contained file."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from q36eval.errors import UsageError

if TYPE_CHECKING:
    from q36eval.kl.attribution import Attribution

TITLES = {"class": "by class of tensors", "layers": "by layer", "cell": "by class and layer"}
NAMES = {"restored": "restored: KL falls by", "alone": "alone: KL is"}


def check_plot(file: Path) -> None:
    """Refuse what cannot become a plot, before hours of passes.

    Raises:
        UsageError: it is a folder or in none, it may not be written, or plotly is not installed.
    """
    if file.is_dir():
        raise UsageError(f"{file} is a folder; name the HTML file to write, such as {file / 'attribution.html'}.")
    if not file.parent.is_dir():
        raise UsageError(f"The folder {file.parent} does not exist; name a file in one that does.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{file} may not be written; name another file.")
    if find_spec("plotly") is None:
        raise UsageError("The plot needs plotly: install q36eval[ui].")


def write_plot(found: "Attribution", title: str, file: Path) -> None:
    """Write an HTML page with one panel per kind of suspect.

    Raises:
        UsageError: the file cannot be written.
    """
    from plotly.graph_objects import Bar
    from plotly.subplots import make_subplots

    kinds = [kind for kind in TITLES if any(blame.kind == kind for blame in found.blames)]
    figure = make_subplots(rows=len(kinds), cols=1, subplot_titles=[TITLES[kind] for kind in kinds])
    for row, kind in enumerate(kinds, start=1):
        for direction, color in (("restored", "#3b6fb6"), ("alone", "#d98032")):
            mine = [blame for blame in found.blames if (blame.kind, blame.direction) == (kind, direction)]
            errors = {
                "type": "data",
                "symmetric": False,
                "array": [blame.nats_interval.upper - blame.nats for blame in mine],
                "arrayminus": [blame.nats - blame.nats_interval.lower for blame in mine],
            }
            figure.add_trace(
                Bar(
                    x=[blame.suspect for blame in mine],
                    y=[blame.nats for blame in mine],
                    error_y=errors,
                    name=NAMES[direction],
                    legendgroup=direction,
                    showlegend=row == 1,
                    marker_color=color,
                    customdata=[[blame.share] for blame in mine],
                    hovertemplate="%{x}<br>%{y:.3g} nats/token, %{customdata[0]:.0%} of the KL",
                ),
                row=row,
                col=1,
            )
        figure.update_yaxes(title_text="nats/token", row=row, col=1)
    heading = f"{title}: KL {found.kl:.3g} nats/token"
    figure.update_layout(title=heading, barmode="group", height=360 * len(kinds), template="plotly_white")
    try:
        file.write_text(figure.to_html(include_plotlyjs=True, full_html=True), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"The plot cannot be written to {file} ({error.strerror}); what it shows was printed."
        ) from error
