"""Branch: its state, people's decisions about it, and its runs."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.parts import (
    RUNS_OFFERED,
    choose_branch,
    newest_runs,
    reader_or_stop,
)
from q36eval.app.dashboard.drawing.standing import policies_words
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.models.overview import freshness, needs_of
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import BranchStanding, Standings
from q36eval.history import RunState, RunSummary


def draw() -> None:
    """The page."""
    reader = reader_or_stop("Branch")
    key = choose_branch(reader)
    now = datetime.now(UTC)
    row = Standings(reader.history, now).of(key)
    with st.container(horizontal=True, vertical_alignment="center"):
        for chip, colour in row.chips:
            st.badge(label(chip), color=colour)
        st.caption(policies_words(row))
    st.text(line(row.why))
    if row.apart:
        st.text(line(f"Not on the overview: {row.apart}"))
    _draw_decisions(row, now)
    st.subheader(f"Runs: {row.of.runs:,}, newest first", anchor=False)
    blessed = None if row.blessing is None else row.blessing.run_id
    for run in newest_runs(reader, key, RUNS_OFFERED):
        alive = reader.alive(run.id) if run.state is RunState.RUNNING else None
        st.page_link("views/run.py", label=label(_run_words(run, blessed, alive)), query_params={"run": run.id})


def _draw_decisions(row: BranchStanding, now: datetime) -> None:
    st.text(line(freshness(row, now)))
    if row.blessing is not None:
        one = row.blessing
        st.text(line(f"★ Blessed run {one.run_id}, by {one.owner} on {one.at:%Y-%m-%d}: {one.reason}"))
    for need in needs_of(row, now):
        st.text(line(f"→ {need}"))
    where, newest = {"branch": row.of.branch, "family": row.of.family}, {"run": row.shown.id}
    with st.container(horizontal=True):
        st.page_link("views/run.py", label="Newest verdict", icon=":material/rule:", query_params=newest)
        st.page_link("views/review.py", label="Review it", icon=":material/rate_review:", query_params=newest)
        st.page_link("views/compare.py", label="Compare", icon=":material/compare_arrows:", query_params=where)
        st.page_link("views/drift.py", label="Drift", icon=":material/timeline:", query_params=where)


def _run_words(run: RunSummary, blessed: str | None, alive: bool | None) -> str:
    state = "its process has ended" if alive is False else str(run.state)
    lanes = ", ".join(f"{lane} {look_of(verdict).label}" for lane, verdict in run.lanes.items())
    words = (
        f"{run.started:%Y-%m-%d %H:%M} UTC",
        look_of(run.verdict).label if run.verdict else f"– {state}",
        lanes,
        "with waivers" * run.waived,
        "awaits a signature" * run.awaiting_sign_off,
        "★ blessed" * (run.id == blessed),
        f"policy {run.policy}" if run.policy else "",
        run.id,
    )
    return " · ".join(filter(None, words))


if __name__ == "__main__":
    draw()
