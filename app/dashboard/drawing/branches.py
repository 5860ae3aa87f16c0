"""A table of branches, one row of 44 pixels each: state, reason, trend, age, and one action."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.tables import TERMS
from q36eval.app.dashboard.escape import label, line, name
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.overview import freshness, needs_of
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import BranchStanding, Standings
from q36eval.history import RunFilter, RunState

Action = tuple[str, str, dict[str, str]]
"""A page, the text of the link to it, and its query parameters."""

COLUMNS = {"Branch": 3.0, "Lanes": 2.7, "Reason": 4.0, "Trend": 2.0, "Age": 1.3, "Action": 1.2}
HELP = {
    "Lanes": TERMS["lanes"],
    "Trend": "KL of the two newest runs and the margin, in nats/token; verdicts of the last ten runs, oldest first.",
}
RUNS_SHOWN = 10
KL_METRIC = "kl.kl_divergence[all]"


def draw_branches(
    reader: Reader, known: Standings, shown: Sequence[BranchStanding], action: Callable[[BranchStanding], Action]
) -> None:
    """The branches by family, in their order."""
    with st.container(key="branches", gap=None):
        if shown:
            with st.container(key="titles"):
                for column, title in zip(st.columns(list(COLUMNS.values())), COLUMNS, strict=True):
                    column.caption(title, help=HELP.get(title))
        for family in sorted({row.of.family for row in shown}):
            st.subheader(label(name(family)), anchor=False)
            for row in shown:
                if row.of.family == family:
                    _draw_row(reader, known.of(row.key), action)


def _draw_row(reader: Reader, row: BranchStanding, action: Callable[[BranchStanding], Action]) -> None:
    now, columns = datetime.now(UTC), st.columns(list(COLUMNS.values()), vertical_alignment="center")
    branch, lanes, reason, trend, age, link = columns
    asked = {"branch": row.of.branch, "family": row.of.family}
    branch.page_link("views/branch.py", label=f"**{label(name(row.of.branch))}**", query_params=asked)
    lanes.markdown("  \n".join(f":{colour}-badge[{label(chip)}]" for chip, colour in row.chips))
    reason.text(line(" ".join((row.why, *needs_of(row, now)))))
    trend.text(line(_trend(reader, row)))
    age.text(freshness(row, now))
    page, words, query = action(row)
    link.page_link(f"views/{page}.py", label=words, query_params=query)


def _trend(reader: Reader, row: BranchStanding) -> str:
    """The newest KL and the one before, and the verdicts of the last runs, oldest first."""
    of, history = row.of, reader.history
    series = history.metric_series(of.branch, of.family, [KL_METRIC], newest=2)
    figures = " → ".join(f"{one.value:.2g}" for one in series if math.isfinite(one.value))
    said = [f"KL {figures}{'' if row.margin is None else f' of {row.margin:.2g}'}"] if figures else []
    wanted = RunFilter(family=of.family, branch=of.branch, state=RunState.FINISHED)
    runs = history.summaries(wanted, limit=RUNS_SHOWN)
    return " ".join([*said, "".join(look_of(run.verdict).symbol for run in reversed(runs))])
