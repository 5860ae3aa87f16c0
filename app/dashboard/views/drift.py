"""Drift: whether a branch moved away from its blessed run, and every metric over its runs, all on one page."""

import streamlit as st

from q36eval.app.dashboard.drawing.charts import drift_figure
from q36eval.app.dashboard.drawing.parts import chart, choose_branch, reader_or_stop, table
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.drift import (
    alarms_words,
    change_rows,
    comparable,
    in_order,
    needed_words,
    since_run,
    state_label,
)
from q36eval.drift import BranchDrift, DriftState, MetricDrift
from q36eval.metrics import metric_of_key

LEGEND = (
    "The effect against the reference with each run's own interval. The star is the blessed run, dotted lines are "
    "changes of the deployment, the ring is the run since which every run differs from the blessed one beyond noise. "
    "Grey: the run does not compare."
)

CHART = 272  # pixels: one stands in a row on a phone, three or four on a screen


def draw() -> None:
    """The page."""
    reader = reader_or_stop("Drift")
    family, branch = choose_branch(reader)
    with st.spinner("Following the metrics over the runs …"):
        drift = reader.drift(family, branch)
        watched = [metric.key for metric in in_order(drift) if metric.watched]
        other = [key for key in reader.history.metric_keys(branch, family) if key not in watched]
        followed = {metric.key: metric for metric in reader.followed(family, branch, watched)}
    metrics = [followed[key] for key in watched if key in followed]
    needed = needed_words(metrics)
    if needed is not None:
        st.info(needed)
        return
    _draw_state(reader, drift)
    _draw_metrics([metric for metric in metrics if comparable(metric) > 1])
    chosen = st.selectbox("A metric that no criterion judges", other, None, _titled, key="metric", bind="query-params")
    if chosen is not None:
        _draw_metrics(reader.followed(family, branch, [chosen]))
    with st.expander("How to read these charts"):
        st.text(LEGEND)
        st.text(line(alarms_words(drift)))


def _draw_state(reader: Reader, drift: BranchDrift) -> None:
    words, colour = state_label(drift.state, drift.worse)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(words, color=colour)
        st.text(line(drift.statement), width="content")
        since = since_run(drift)
        if since is not None:
            began = f"The run it began with, {reader.history.get_run(since).started:%Y-%m-%d %H:%M} UTC"
            st.page_link("views/run.py", label=began, icon=":material/rule:", query_params={"run": since})
    changes = change_rows(drift)
    if changes:
        with st.expander(f"What changed in the deployment, and with which run ({len(changes)})"):
            table(changes, "Changes of the deployment between runs", f"changes {drift.branch}")


def _draw_metrics(metrics: list[MetricDrift]) -> None:
    """A small chart of each, in rows as wide as the page."""
    with st.container(horizontal=True):
        for metric in metrics:
            with st.container(width=CHART, gap=None):
                words, colour = state_label(metric.state, metric.worse)
                st.markdown(f"**{label(_titled(metric.key))}**")
                if metric.state is not DriftState.STABLE:
                    st.badge(words, color=colour, help=label(metric.statement))
                chart(drift_figure(metric), f"{_titled(metric.key)} over the runs: {metric.statement}", metric.key)


def _titled(key: str) -> str:
    described, slice = metric_of_key(key)
    return line(described.titled(slice))


if __name__ == "__main__":
    draw()
