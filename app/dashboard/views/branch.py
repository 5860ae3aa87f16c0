"""Drift: each metric of a branch over its runs, against the run it was blessed with."""

import streamlit as st

from app.dashboard.charts import drift_figure
from app.dashboard.drift_model import CHOICES, drift_lines, judged_keys, select, state_label
from app.dashboard.inert import line
from app.dashboard.overview_model import BranchKey, branches_of
from app.dashboard.parts import page_of, reader_or_stop
from q36eval.history import Blessing, MetricDrift, RunRecord

METRICS_PER_PAGE = 8


def draw() -> None:
    """The page."""
    st.title("Drift")
    reader = reader_or_stop()
    branches = branches_of(reader.history.list_runs())
    key = _choose_branch(list(branches))
    blessing = next(iter(reader.blessings(*key)), None)
    _draw_baseline(blessing)
    metrics = reader.drift(*key, None if blessing is None else blessing.run_id)
    if not metrics:
        st.info("No finished run of this branch has measured anything yet.")
        return
    shown = _choose_metrics(metrics, branches[key])
    for metric in page_of(shown, METRICS_PER_PAGE, "drift_page"):
        _draw_metric(metric, "oldest comparable run" if blessing is None else "blessed run")
    if not shown:
        st.text("No metric to show under this choice.")


def _choose_branch(keys: list[BranchKey]) -> BranchKey:
    asked = (st.query_params.get("family", ""), st.query_params.get("branch", ""))
    st.session_state["drift_branch"] = asked if asked in keys else st.session_state.get("drift_last", keys[0])
    if st.session_state["drift_branch"] not in keys:
        st.session_state["drift_branch"] = keys[0]

    def follow() -> None:
        st.query_params["family"], st.query_params["branch"] = st.session_state["drift_branch"]

    key: BranchKey = st.selectbox(
        "Branch", keys, key="drift_branch", format_func=lambda k: line(f"{k[1]} (family {k[0]})"), on_change=follow
    )
    st.query_params["family"], st.query_params["branch"] = key
    st.session_state["drift_last"] = key
    return key


def _draw_baseline(blessing: Blessing | None) -> None:
    if blessing is None:
        st.text("No run of this branch is blessed: the baseline is the oldest comparable run.")
        return
    st.text(line(f"★ Blessed run {blessing.run_id}, by {blessing.owner} on {blessing.at:%Y-%m-%d}: {blessing.reason}"))


def _choose_metrics(metrics: list[MetricDrift], runs: list[RunRecord]) -> list[MetricDrift]:
    judged = judged_keys(next((run for run in runs if run.report is not None), None))
    which = st.selectbox("Metrics", CHOICES, index=0 if judged else 2, key="drift_which")
    shown = select(metrics, which, judged)
    st.caption(f"{len(shown)} of {len(metrics)} metrics. Bars are each run's own interval; the band is the baseline's.")
    return shown


def _draw_metric(metric: MetricDrift, baseline: str) -> None:
    with st.container(border=True):
        words, chart = st.columns((1, 2.4))
        with words:
            st.code(line(metric.key), language=None, wrap_lines=True)
            label, colour = state_label(metric)
            st.badge(label, color=colour)
            st.text(line(metric.statement))
            better = "lower" if metric.direction.value.startswith("lower") else "higher"
            st.text(line(f"Drawn is the effect against the reference. Figure in {metric.unit}; {better} is better."))
        figure = drift_figure(drift_lines(metric), baseline)
        chart.plotly_chart(figure, key=f"drift {metric.key}", alt="Effect over runs with each run's interval")


if __name__ == "__main__":
    draw()
