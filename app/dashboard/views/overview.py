"""Overview: every branch, its latest verdict per lane, how fresh it is, and what needs a person."""

from datetime import UTC, datetime

import streamlit as st

from app.dashboard.inert import line
from app.dashboard.look import lane_label, look_of
from app.dashboard.overview_model import BranchRow, Review, branches_of, overview
from app.dashboard.parts import page_of, reader_or_stop
from app.dashboard.reading import Reader
from q36eval.records import Lane

WIDTHS = (1.8, 1.7, 1.7, 2.4, 4.0, 1.2)
BRANCHES_PER_PAGE = 25


def draw() -> None:
    """The page."""
    st.title("Branches")
    reader = reader_or_stop()
    rows = overview(reader.history.list_runs(), _reviews(reader), datetime.now(UTC))
    waiting = sum(bool(row.needs) for row in rows)
    st.caption(f"{len(rows)} branches, {waiting} of them waiting for a person. Latest verdict of each, per lane.")
    head = st.columns(WIDTHS)
    titles = ("Branch", *(f"Lane: {lane.value}" for lane in Lane), "Freshness, blessing", "Needs a person", "")
    for column, title in zip(head, titles, strict=True):
        column.caption(title)
    for row in page_of(rows, BRANCHES_PER_PAGE, "overview_page"):
        _draw_row(row)


def _reviews(reader: Reader) -> dict[tuple[str, str], Review]:
    reviews = {}
    for family, branch in branches_of(reader.history.list_runs()):
        blessing = next(iter(reader.blessings(family, branch)), None)
        reviews[family, branch] = Review(
            blessing=blessing,
            waivers=tuple(reader.waivers(family, branch).values()),
            drift=() if blessing is None else tuple(reader.drift(family, branch, blessing.run_id)),
        )
    return reviews


def _draw_row(row: BranchRow) -> None:
    with st.container(border=True):
        name, *lanes, state, needs, link = st.columns(WIDTHS)
        name.text(f"{line(row.branch)}\nfamily {line(row.family)}")
        for column, result in zip(lanes, row.lanes.values(), strict=True):
            column.badge(lane_label(result), color=look_of(None if result is None else result.verdict).colour)
        state.text(f"{row.freshness}\n{line(row.blessing)}")
        with needs:
            for need in row.needs:
                st.text(f"→ {line(need)}")
            if not row.needs:
                st.text("nothing")
        shown = row.judged or row.newest
        link.page_link("views/run.py", label="Run", icon=":material/rule:", query_params={"run": shown.id})
        link.page_link(
            "views/branch.py",
            label="Drift",
            icon=":material/show_chart:",
            query_params={"branch": row.branch, "family": row.family},
        )


if __name__ == "__main__":
    draw()
