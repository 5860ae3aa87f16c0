"""Run: one run's verdict, lanes, criteria against their margins, what was not measured, identity and provenance."""

import streamlit as st

from app.dashboard.charts import margin_figure
from app.dashboard.inert import line
from app.dashboard.look import look_of
from app.dashboard.parts import choose_run, plain_table, reader_or_stop, verdict_badge, verdict_heading
from app.dashboard.reading import Reader
from app.dashboard.run_model import (
    criteria_rows,
    identity_rows,
    margin_bars,
    measurement_rows,
    not_drawn,
    not_measured,
    provenance_rows,
    summary,
)
from q36eval.gate.report import CriterionVerdict, GateReport
from q36eval.history import RunRecord


def draw() -> None:
    """The page."""
    st.title("Run")
    reader = reader_or_stop()
    run = choose_run(reader, "run_page_run")
    _draw_verdict(run)
    _draw_gaps(reader, run)
    if run.report is not None:
        _draw_criteria(run.report)
    measured, identity, provenance = st.tabs(["All measurements", "Identity", "Provenance"])
    with measured:
        rows = measurement_rows(reader.measurements(run))
        if rows:
            plain_table(rows, "All measurements of the run")
        else:
            st.text("Nothing was measured.")
    with identity:
        plain_table(identity_rows(run), "Identity of branch and reference")
    with provenance:
        plain_table(provenance_rows(run), "Provenance of the run")


def _draw_verdict(run: RunRecord) -> None:
    verdict_heading(run.verdict, " with waivers" if run.report is not None and run.report.waived else "")
    st.text(line(summary(run)))
    if run.report is None:
        st.info(f"This run is {run.state.value} and has no verdict; it shows only what was measured.")
        return
    for column, lane in zip(st.columns(max(2, len(run.report.lanes))), run.report.lanes, strict=False):
        with column.container(border=True):
            st.caption(f"Lane: {lane.lane.value}")
            verdict_badge(lane.verdict, " with waivers" if lane.waived else "")
            if lane.decisive:
                st.text(f"decided by {', '.join(lane.decisive)}")
            if lane.waived:
                st.text(f"waived: {', '.join(lane.waived)}")
    st.page_link("views/canaries.py", label="Canaries of this run, side by side", query_params={"run": run.id})


def _draw_gaps(reader: Reader, run: RunRecord) -> None:
    """What is missing, before any figure: a run is only as good as what it measured."""
    missing = [] if run.report is None else not_measured(run.report)
    if missing:
        label = look_of(CriterionVerdict.NOT_MEASURED).label
        with st.container(border=True):
            st.error(f"{label}: {len(missing)} of the policy's criteria. What was not measured never passes.")
            for sentence in missing:
                st.text(line(sentence))
    failures = reader.failures(run)
    if failures:
        with st.container(border=True):
            st.warning("Probes without figures")
            for failure in failures:
                st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
    for note in () if run.report is None else run.report.notes:
        st.text(f"Note: {line(note)}")


def _draw_criteria(report: GateReport) -> None:
    st.subheader("Criteria against their margins")
    bars = margin_bars(report.criteria)
    if bars:
        st.plotly_chart(margin_figure(bars), alt="Loss of each criterion, with its interval, as a share of its margin")
    left_out = not_drawn(report.criteria)
    if left_out:
        st.caption("Only in the table (a count, or no finite figure):")
        st.text(", ".join(left_out))
    plain_table(criteria_rows(report.criteria), "Criteria of the policy")


if __name__ == "__main__":
    draw()
