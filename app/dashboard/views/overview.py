"""Overview: the state of every release candidate, with one action each, and running measurements."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.branches import Action, draw_branches
from q36eval.app.dashboard.drawing.parts import page_of, reader_or_stop
from q36eval.app.dashboard.drawing.standing import LIVE_EVERY_S, draw_live, running
from q36eval.app.dashboard.escape import label, line, name
from q36eval.app.dashboard.history_reader import Reader, explained
from q36eval.app.standing import BranchStanding, Standing, Standings, in_order
from q36eval.history import RunState
from q36eval.reports.ui_address import evidence_place

BRANCHES_PER_PAGE = 20
OTHERS_PER_PAGE = 50


def draw() -> None:
    """The page."""
    reader = reader_or_stop("Overview")
    known = Standings(reader.history, datetime.now(UTC))
    rows = in_order(known.all())
    st.fragment(_draw_running, run_every=LIVE_EVERY_S)(reader)
    listed = [row for row in rows if not row.apart]
    if not listed:
        st.info("No release candidate yet: a gate measures a branch and decides whether it may ship.")
    draw_branches(reader, known, page_of(listed, BRANCHES_PER_PAGE, "overview_page"), _action)
    _draw_others([row for row in rows if row.apart])


def _action(row: BranchStanding) -> Action:
    place = None if row.decisive is None else evidence_place(row.decisive, row.run.id)
    if row.standing is Standing.SIGN:
        return "review", "Sign", {"run": row.run.id}
    if row.of.newest.state is RunState.INTERRUPTED:
        return "run", "Gate it again" if row.changed else "Resume", {"run": row.of.newest.id}
    if row.standing is Standing.BLOCKED and place is not None:
        return place.page, "See why", dict(place.query)
    return "run", "Open", {"run": row.run.id}


@explained()
def _draw_running(reader: Reader) -> None:
    for live in running(reader):
        draw_live(live)


def _draw_others(rows: list[BranchStanding]) -> None:
    """What history holds besides release candidates: rounds of watch, inspections, archived branches."""
    if not rows:
        return
    with st.expander(f"Not release candidates: {len(rows)}"):
        for row in page_of(rows, OTHERS_PER_PAGE, "others_page"):
            branch, why = st.columns((1, 2), vertical_alignment="center")
            asked = {"branch": row.of.branch, "family": row.of.family}
            branch.page_link("views/branch.py", label=label(name(row.of.branch)), query_params=asked)
            why.text(line(f"{row.apart} (family {row.of.family}, runs: {row.of.runs:,})"))


if __name__ == "__main__":
    draw()
