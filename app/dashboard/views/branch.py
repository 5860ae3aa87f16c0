"""Branch: how it stands, each metric over its runs, what changed between them, and its runs."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.charts import drift_figure
from q36eval.app.dashboard.drawing.parts import (
    RUNS_OFFERED,
    branch_label,
    chart,
    name_tab,
    named_branch,
    newest_runs,
    page_head,
    reader_or_stop,
    table,
)
from q36eval.app.dashboard.drawing.standing import draw_needs, lanes_words, policies_words
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.drift import alarms_words, change_rows, in_order, since_run, state_label
from q36eval.app.dashboard.models.overview import freshness
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import BranchStanding, Standings
from q36eval.drift import BranchDrift
from q36eval.history import BranchKey, RunState, RunSummary
from q36eval.metrics import metric_of_key

LEGEND = (
    "The effect against the reference with each run's own interval. The star is the blessed run, dotted lines are "
    "changes of the deployment, the ring is the run since which every run differs from the blessed one beyond noise."
)


def draw() -> None:
    """The page."""
    page_head("Branch")
    reader = reader_or_stop()
    key = _choose_branch(sorted((of.family, of.branch) for of in reader.history.branches()))
    now = datetime.now(UTC)
    row = Standings(reader.history, now).of(key)
    st.badge(label(row.chip), color=row.colour)
    st.text(line(row.why))
    st.caption(f"{lanes_words(row)}{policies_words(row)}")
    _draw_decisions(row, now)
    with st.spinner("Following the metrics over the runs …"):
        drift = reader.drift(*key)
    _draw_state(reader, drift)
    _draw_metric(reader, drift)
    st.subheader(f"The newest of {row.of.runs:,} runs", anchor=False)
    blessed = None if row.blessing is None else row.blessing.run_id
    for run in newest_runs(reader, key, RUNS_OFFERED):
        alive = reader.alive(run.id) if run.state is RunState.RUNNING else None
        st.page_link("views/run.py", label=label(_run_words(run, blessed, alive)), query_params={"run": run.id})


def _choose_branch(keys: list[BranchKey]) -> BranchKey:
    chosen = named_branch(keys) or st.session_state.get("branch_last", keys[0])
    st.session_state["branch_branch"] = chosen if chosen in keys else keys[0]

    def follow() -> None:
        st.query_params["family"], st.query_params["branch"] = st.session_state["branch_branch"]

    key: BranchKey = st.selectbox("Branch", keys, key="branch_branch", format_func=branch_label, on_change=follow)
    st.query_params["family"], st.query_params["branch"] = key
    st.session_state["branch_last"] = key
    name_tab(key[1], f"family {key[0]}")
    return key


def _draw_decisions(row: BranchStanding, now: datetime) -> None:
    st.text(line(freshness(row, now)))
    if row.blessing is not None:
        one = row.blessing
        st.text(line(f"★ Blessed run {one.run_id}, by {one.owner} on {one.at:%Y-%m-%d}: {one.reason}"))
    draw_needs(row, now)
    where, newest = {"branch": row.of.branch, "family": row.of.family}, {"run": row.shown.id}
    with st.container(horizontal=True):
        st.page_link("views/run.py", label="Newest verdict", icon=":material/rule:", query_params=newest)
        st.page_link("views/review.py", label="Review it", icon=":material/rate_review:", query_params=newest)
        st.page_link("views/compare.py", label="Compare", icon=":material/compare_arrows:", query_params=where)


def _draw_state(reader: Reader, drift: BranchDrift) -> None:
    if not drift.metrics:
        return
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


def _draw_metric(reader: Reader, drift: BranchDrift) -> None:
    """The chart of one metric: of those that the policy judges, then of all others."""
    key = (drift.family, drift.branch)
    judged = [metric.key for metric in in_order(drift) if metric.watched]
    keys = list(dict.fromkeys((*judged, *reader.history.metric_keys(drift.branch, drift.family))))
    if not keys:
        st.info("No finished run of this branch has measured anything.")
        return
    chosen = st.selectbox("Metric", keys, format_func=_titled, key="metric", bind="query-params")
    for metric in reader.followed(*key, [chosen]):
        described, _ = metric_of_key(metric.key)
        words, colour = state_label(metric.state, metric.worse)
        st.badge(words, color=colour)
        st.text(line(metric.statement))
        alt = f"{_titled(metric.key)} over the runs: {metric.statement}"
        chart(drift_figure(metric), alt, f"drift {metric.key}")
        st.caption(label(f"In {metric.unit}; {described.better} is better. {described.meaning}"))
    with st.expander("How to read this chart"):
        st.text(LEGEND)
        st.text(line(alarms_words(drift)))


def _titled(key: str) -> str:
    described, slice = metric_of_key(key)
    return line(f"{described.titled(slice)} ({key})")


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
