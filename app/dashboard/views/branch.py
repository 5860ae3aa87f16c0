"""Branch: each metric of a branch over its runs, what changed between them, and all its runs."""

from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.charts import drift_figure
from q36eval.app.dashboard.drawing.head import name_tab, page_head
from q36eval.app.dashboard.drawing.parts import (
    branch_label,
    chart,
    named_branch,
    page_of,
    page_offset,
    reader_or_stop,
    table,
)
from q36eval.app.dashboard.drawing.standing import lanes_words, policies_words
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.drift import (
    DriftPicture,
    alarms_words,
    change_rows,
    drift_picture,
    holds,
    in_order,
    since_run,
    state_label,
)
from q36eval.app.dashboard.models.overview import freshness, needs_of
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import BranchStanding, Standings
from q36eval.drift import BranchDrift, MetricDrift
from q36eval.history import BranchKey, RunFilter, RunState, RunSummary
from q36eval.metrics import metric_of_key
from q36eval.records import Verdict

METRICS_PER_PAGE = 2
RUNS_PER_PAGE = 10
DRAWN_FIRST = "the newest 30"
RUNS_DRAWN = {DRAWN_FIRST: 30, "the newest 100": 100, "all": 1_000_000}
WATCHED, EVERYTHING = "judged by the policy", "everything measured"
ANY = "any"
LEGEND = (
    "The effect against the reference with each run's own interval; the band is that of the blessed run, dotted lines "
    "are changes of the deployment, the ring is the run since which every run differs from the blessed one beyond "
    "noise. The dashed line is the policy's margin, the dash-dotted one the noise floor: what the reference loses "
    "against itself."
)


def draw() -> None:
    """The page."""
    page_head("Branch")
    reader = reader_or_stop()
    key = _choose_branch(sorted((of.family, of.branch) for of in reader.branches()))
    now = datetime.now(UTC)
    row = Standings(reader, now).of(key)
    st.badge(label(row.chip), color=row.colour)
    st.text(line(row.why))
    st.caption(f"{lanes_words(row)}{policies_words(row)}")
    _draw_decisions(row, now)
    drift, runs = address.tabs("tab", "branch_tab", ["Drift", f"Runs ({row.of.runs:,})"], ["drift", "runs"])
    if runs.open:
        with runs:
            _draw_runs(reader, key)
    if drift.open:
        with drift:
            _draw_drift(reader, row)


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
    for need in needs_of(row, now):
        st.text(f"→ {line(need.words)}")
        if need.command is not None:
            st.code(line(need.command), language=None, wrap_lines=True)
    with st.container(horizontal=True):
        where = {"branch": row.of.branch, "family": row.of.family}
        newest = {"run": row.shown.id}
        st.page_link(
            "views/run.py", label="Newest verdict", icon=":material/rule:", query_params=newest, width="content"
        )
        st.page_link(
            "views/review.py", label="Review it", icon=":material/rate_review:", query_params=newest, width="content"
        )
        st.page_link(
            "views/compare.py", label="Compare", icon=":material/compare_arrows:", query_params=where, width="content"
        )


def _draw_drift(reader: Reader, row: BranchStanding) -> None:
    """The charts."""
    key = row.key
    place = st.empty()
    with st.popover("Filter", icon=":material/filter_list:", type="tertiary"):
        kept = address.choice("metrics", "drift_which", (WATCHED, EVERYTHING))
        everything = st.segmented_control("Metrics", (WATCHED, EVERYTHING), required=True, **kept) == EVERYTHING
        kept = address.typed("q", "drift_text")
        text = st.text_input("Title or id holds", **kept).strip().lower()
        kept = address.choice("runs", "drift_runs", tuple(RUNS_DRAWN))
        drawn = st.segmented_control("Runs drawn", tuple(RUNS_DRAWN), required=True, **kept)
    with place, st.spinner("Following the metrics over the runs …"):
        drift = reader.drift(*key)
    with place.container():
        _draw_state(reader, drift)
    if everything:
        keys = [name for name in reader.metric_keys(*key) if holds(name, text)]
    else:
        keys = [metric.key for metric in in_order(drift) if metric.watched and holds(metric.key, text)]
    shown = page_of(keys, METRICS_PER_PAGE, "drift_page", "drift_page")
    metrics = {metric.key: metric for metric in reader.followed(*key, shown)}
    report = None if row.of.judged is None else reader.run(row.of.judged.id).report
    judged = {} if report is None else {f"{one.probe}.{one.metric}[{one.slice}]": one for one in report.criteria}
    for metric in (metrics[name] for name in shown if name in metrics):
        picture = drift_picture(metric, RUNS_DRAWN[drawn or DRAWN_FIRST], judged.get(metric.key))
        _draw_metric(metric, picture)
    if shown:
        shown_how = address.expander("How to read these charts", "reading", "branch_reading")
        if shown_how.open:
            shown_how.write(LEGEND)
            shown_how.text(line(alarms_words(drift)))
    else:
        st.info("No finished run of this branch has measured such a metric.")


def _draw_state(reader: Reader, drift: BranchDrift) -> None:
    if not drift.metrics:
        return
    label, colour = state_label(drift.state, drift.worse)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(label, color=colour)
        st.text(line(drift.statement), width="content")
        since = since_run(drift)
        if since is not None:
            began = reader.run(since).started
            words = f"The run it began with, {began:%Y-%m-%d %H:%M} UTC"
            st.page_link("views/run.py", label=words, icon=":material/rule:", query_params={"run": since})
    changes = change_rows(drift)
    if changes:
        title = f"What changed in the deployment, and with which run ({len(changes)})"
        shown = address.expander(title, "changes", f"changes of {drift.branch}")
        if shown.open:
            with shown:
                table(changes, "Changes of the deployment between runs", f"changes {drift.branch}")


def _draw_metric(metric: MetricDrift, picture: DriftPicture) -> None:
    with st.container(border=True):
        words, drawn = st.columns((1, 2.6))
        with words:
            _draw_words(metric)
        with drawn:
            described, slice = metric_of_key(metric.key)
            alt = f"{described.titled(slice)} over the runs: {metric.statement}"
            chart(drift_figure(picture, metric.unit), line(alt), f"drift {metric.key}")


def _draw_words(metric: MetricDrift) -> None:
    described, slice = metric_of_key(metric.key)
    st.header(label(described.titled(slice)), anchor=False)
    st.caption(label(metric.key))
    name, colour = state_label(metric.state, metric.worse)
    st.badge(name, color=colour)
    st.text(line(metric.statement))
    st.caption(label(f"In {metric.unit}; {described.better} is better. {described.meaning}"))
    if metric.since_run_id is not None:
        run = {"run": metric.since_run_id}
        words = f"The run that {described.title} moved with"
        st.page_link("views/run.py", label=label(words), icon=":material/rule:", query_params=run)


def _draw_runs(reader: Reader, key: BranchKey) -> None:
    state_at, verdict_at, page_at = st.columns(3, vertical_alignment="bottom")
    states, verdicts = (ANY, *map(str, RunState)), (ANY, *map(str, Verdict))
    state = state_at.selectbox("State", states, **address.choice("state", "runs_state", states))
    verdict = verdict_at.selectbox("Verdict", verdicts, **address.choice("verdict", "runs_verdict", verdicts))
    wanted = RunFilter(
        family=key[0],
        branch=key[1],
        state=None if state == ANY else RunState(state),
        verdict=None if verdict == ANY else Verdict(verdict),
    )
    with page_at:
        offset = page_offset(reader.count_runs(wanted), RUNS_PER_PAGE, "runs_page", "runs_page")
    runs = reader.summaries(wanted, limit=RUNS_PER_PAGE, offset=offset)
    blessed = {one.run_id for one in reader.blessings(*key)[:1]}
    for run in runs:
        _draw_run(run, run.id in blessed, reader.alive(run.id) if run.state is RunState.RUNNING else None)
    if not runs:
        st.info("No run of this branch is like this. Choose any.")


def _draw_run(run: RunSummary, blessed: bool, alive: bool | None) -> None:
    state = "its process has ended" if alive is False else run.state
    with st.container(border=True):
        verdict, when, lanes, of, links = st.columns((1.5, 2, 2.2, 3, 1))
        look = look_of(run.verdict)
        verdict.badge(f"{look.label if run.verdict else '– ' + state}", color=look.colour)
        waived = "\nwith waivers" * run.waived + "\nawaits a signature" * run.awaiting_sign_off
        when.text(f"{run.started:%Y-%m-%d %H:%M} UTC\n{run.id}{chr(10) + '★ blessed' if blessed else ''}")
        lanes.text(
            "\n".join(f"{lane}: {look_of(verdict_found).label}" for lane, verdict_found in run.lanes.items()) + waived
        )
        checkpoint = "unknown" if run.checkpoint_sha256 is None else run.checkpoint_sha256[:12]
        of.text(
            line(f"policy {run.policy or '–'}")
            + "\n"
            + line(f"checkpoint {checkpoint}, engine {run.engine_version or '–'}")
        )
        links.page_link(
            "views/run.py", label=label(f"Run {run.id[-6:]}"), icon=":material/rule:", query_params={"run": run.id}
        )


if __name__ == "__main__":
    draw()
