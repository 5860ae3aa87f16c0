"""Overview: every branch, its latest verdict per lane, how fresh it is, what needs a person, and what runs now."""

from datetime import UTC, datetime

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from q36eval.app.dashboard.drawing.parts import page_offset, reader_or_stop
from q36eval.app.dashboard.drawing.sparkline import SparkPoint, sparkline, words
from q36eval.app.dashboard.inert import line
from q36eval.app.dashboard.look import look_of
from q36eval.app.dashboard.models.overview import (
    BranchRow,
    LiveRun,
    Urgency,
    by_need,
    drift_need,
    live_runs,
    resume_command,
)
from q36eval.app.dashboard.reading import Reader, branch_rows, detailed
from q36eval.drift import FEWEST_RUNS
from q36eval.history import RunFilter, RunState
from q36eval.records import Verdict

WIDTHS = (1.6, 2.7, 1.9, 1.9, 3.2, 1.3)
BRANCHES_PER_PAGE = 10
RUNS_DRAWN = 20
SPARK_METRIC = "kl.kl_divergence[all]"
LIVE_EVERY_S = 2.0
MOST_LIVE = 20

EVERYTHING, NEEDS, FAILING = "All", "Needs a person", "Failing"


def draw() -> None:
    """The page."""
    st.title("Branches", anchor=False)
    reader = reader_or_stop()
    st.fragment(_draw_live, run_every=LIVE_EVERY_S)(reader)
    now = datetime.now(UTC)
    rows = by_need(branch_rows(reader, now))
    shown, offset = _choose(rows)
    head = st.columns(WIDTHS)
    titles = ("Branch", "Verdict by lane", "Last runs: KL, verdict", "Freshness, blessing", "Needs a person", "")
    for column, title in zip(head, titles, strict=True):
        column.caption(title)
    drawn = detailed(reader, shown[offset : offset + BRANCHES_PER_PAGE], now)
    places = [_draw_row(reader, row) for row in drawn]
    if not shown:
        st.info("No branch is like this. Choose All, or clear the field.")
    _draw_silent(reader)
    kept = reader.kept_drifts()
    for row, place in zip(drawn, places, strict=True):  # last: what is not kept takes a second each
        if row.key not in kept:
            _draw_drifting(reader, row, place)


def _choose(rows: list[BranchRow]) -> tuple[list[BranchRow], int]:
    """The rows under the reader's filter, and where the page of them begins."""
    waiting = sum(row.urgency is not Urgency.NOTHING for row in rows)
    st.caption(f"{len(rows)} branch{'es' * (len(rows) != 1)}, {waiting} waiting for a person. Latest verdict by lane.")
    left, middle, right = st.columns((2, 3, 2), vertical_alignment="bottom")
    text = left.text_input("Branch or family holds", key="overview_text").strip().lower()
    which = middle.segmented_control(
        "Show", (EVERYTHING, NEEDS, FAILING), default=EVERYTHING, key="overview_which", required=True
    )
    shown = [
        row
        for row in rows
        if text in f"{row.key[0]} {row.key[1]}".lower()
        and (which != NEEDS or row.urgency is not Urgency.NOTHING)
        and (which != FAILING or row.verdict is Verdict.FAIL)
    ]
    with right:
        return shown, page_offset(len(shown), BRANCHES_PER_PAGE, "overview_page")


def _draw_row(reader: Reader, row: BranchRow) -> DeltaGenerator:
    """Draws it; returns the place where what its drift asks for may be said."""
    with st.container(border=True):
        name, lanes, spark, state, needs, links = st.columns(WIDTHS)
        name.text(f"{line(row.of.branch)}\nfamily {line(row.of.family)}\n{row.of.runs:,} run{'s' * (row.of.runs != 1)}")
        for lane, verdict in row.lanes.items():
            look = look_of(verdict)
            waived = " with waivers" if lane in row.waived else ""
            label = f"{look.label}{waived}" if verdict is not None else "– not judged"
            lanes.badge(f"{lane.value}: {label}", color=look.colour)
        _draw_spark(reader, row, spark)
        state.text(f"{row.freshness}\n{line(row.blessing)}")
        with needs:
            place = st.empty()
            _draw_needs(row)
        links.page_link("views/run.py", label="Run", icon=":material/rule:", query_params={"run": row.shown.id})
        links.page_link(
            "views/branch.py",
            label="Branch",
            icon=":material/show_chart:",
            query_params={"branch": row.of.branch, "family": row.of.family},
        )
        if row.of.judged is not None and row.needs:
            links.page_link(
                "views/review.py", label="Review", icon=":material/rate_review:", query_params={"run": row.shown.id}
            )
    return place


def _draw_drifting(reader: Reader, row: BranchRow, place: DeltaGenerator) -> None:
    if row.of.judged is None or row.of.runs < FEWEST_RUNS:
        return
    need = drift_need(reader.drift(*row.key))
    if need is not None:
        place.text(f"→ {line(need.words)}")


def _draw_needs(row: BranchRow) -> None:
    for need in row.needs:
        st.text(f"→ {line(need.words)}")
        if need.command is not None:
            st.code(line(need.command), language=None, wrap_lines=True)
    if not row.needs:
        st.text("nothing")


def _draw_spark(reader: Reader, row: BranchRow, place: DeltaGenerator) -> None:
    figures = reader.figures(row.of.family, row.of.branch, SPARK_METRIC)
    newest = reader.summaries(
        RunFilter(family=row.of.family, branch=row.of.branch, state=RunState.FINISHED), limit=RUNS_DRAWN
    )
    points = [SparkPoint(figures.get(run.id, float("nan")), run.verdict) for run in reversed(newest)]
    if points:
        place.image(sparkline(points), alt=words(points, "KL in nats/token"))


def _draw_live(reader: Reader) -> None:
    """What is being measured now; drawn again by itself."""
    live = [run for run in _running(reader) if not run.silent]
    if live:
        st.subheader("Running now", anchor=False)
    for run in live:
        with st.container(border=True):
            name, bar, link = st.columns((2, 5, 1))
            name.text(f"{line(run.branch)}\nfamily {line(run.family)}")
            if run.share is not None:
                bar.progress(run.share)
            bar.text(line(run.words))
            link.page_link("views/run.py", label="Run", icon=":material/rule:", query_params={"run": run.id})


def _draw_silent(reader: Reader) -> None:
    silent = [run for run in _running(reader) if run.silent]
    if not silent:
        return
    with st.expander(f"Begun and never finished: {len(silent)} runs without a sign of life"):
        st.text("Where the process is dead, each goes on where it stopped:")
        for run in silent:
            st.text(line(f"{run.branch} (family {run.family}): {run.words}"))
            st.code(line(resume_command(run.branch, run.id)), language=None)


def _running(reader: Reader) -> list[LiveRun]:
    running = reader.summaries(RunFilter(state=RunState.RUNNING), limit=MOST_LIVE)
    return live_runs([(run, reader.progress(run.id)) for run in running], datetime.now(UTC))


if __name__ == "__main__":
    draw()
