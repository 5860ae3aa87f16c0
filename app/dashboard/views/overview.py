"""Overview: how every branch stands, by family, with one action each, and what is being measured now."""

import math
from datetime import UTC, datetime

import streamlit as st

from q36eval.app.dashboard.drawing.parts import page_head, page_of, reader_or_stop
from q36eval.app.dashboard.drawing.standing import draw_needs, lanes_words, policies_words
from q36eval.app.dashboard.escape import label, line, name
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.launch_options import shown_source
from q36eval.app.dashboard.models.overview import LiveRun, freshness, live_runs, resume_command
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import BranchStanding, Standing, Standings, in_order
from q36eval.history import RunFilter, RunState
from q36eval.reports.text import number
from q36eval.reports.ui_address import evidence_place

WIDTHS = (2.2, 4.2, 1.9, 2.0)
BRANCHES_PER_PAGE = 20
RUNS_SHOWN = 10
KL_METRIC = "kl.kl_divergence[all]"
LIVE_EVERY_S = 2.0
MOST_LIVE = 20


def draw() -> None:
    """The page."""
    page_head("Overview")
    reader = reader_or_stop()
    known = Standings(reader.history, datetime.now(UTC))
    st.fragment(_draw_live, run_every=LIVE_EVERY_S)(reader)
    shown = page_of(in_order(known.all()), BRANCHES_PER_PAGE, "overview_page")
    for family in sorted({row.of.family for row in shown}):
        st.subheader(label(name(family)), anchor=False)
        for row in shown:
            if row.of.family == family:
                _draw_row(reader, known.of(row.key))
    _draw_silent(reader)
    st.caption(f"History: {label(shown_source(reader.source))}")


def _draw_row(reader: Reader, row: BranchStanding) -> None:
    of, now = row.of, datetime.now(UTC)
    with st.container(border=True):
        heading, state, trend, button = st.columns(WIDTHS, vertical_alignment="center")
        heading.page_link(
            "views/branch.py",
            label=f"**{label(name(of.branch))}**",
            query_params={"branch": of.branch, "family": of.family},
        )
        heading.badge(label(row.chip), color=row.colour)
        state.text(line(row.why))
        state.caption(f"{lanes_words(row)} · {freshness(row, now)}{policies_words(row)}")
        with state:
            draw_needs(row, now, commands_only=True)
        with trend:
            _draw_trend(reader, row)
        page, words, asked = "run", "Open the run of", {"run": row.run.id}
        place = None if row.decisive is None else evidence_place(row.decisive, row.run.id)
        if row.standing is Standing.SIGN:
            page, words = "review", "Sign"
        elif row.standing is Standing.BLOCKED and place is not None:
            page, words, asked = place.page, f"See {place.label}:", dict(place.query)
        button.page_link(
            f"views/{page}.py",
            label=f"{words} {label(name(of.branch))}",
            icon=":material/arrow_forward:",
            query_params=asked,
        )


def _draw_trend(reader: Reader, row: BranchStanding) -> None:
    """The newest KL and the one before, and the verdicts of the last runs, oldest first."""
    of, history = row.of, reader.history
    series = history.metric_series(of.branch, of.family, [KL_METRIC], newest=2)
    figures = [number(one.value) for one in series if math.isfinite(one.value)]
    if figures:
        margin = "" if row.margin is None else f", margin {number(row.margin)}"
        st.text(line(f"KL {' → '.join(figures)} nats/token{margin}"))
    wanted = RunFilter(family=of.family, branch=of.branch, state=RunState.FINISHED)
    runs = history.summaries(wanted, limit=RUNS_SHOWN)
    st.caption(label(" ".join(look_of(run.verdict).symbol for run in reversed(runs))))


def _draw_live(reader: Reader) -> None:
    """The runs that measure now, a thin strip each."""
    for live in (live for live in _running(reader) if not live.silent):
        strip, link = st.columns((1, 5), vertical_alignment="center")
        strip.progress(live.share or 0.0)
        words = f"Running: {name(live.run.branch)} · {live.words}"
        link.page_link("views/run.py", label=label(words), query_params={"run": live.run.id})


def _draw_silent(reader: Reader) -> None:
    silent = [live for live in _running(reader) if live.silent]
    if silent:
        with st.expander(f"Runs without a sign of life ({len(silent)})"):
            st.text("If the process is dead, the command continues the run:")
            for live in silent:
                st.text(line(f"{live.run.branch} (family {live.run.family}): {live.words}"))
                st.code(line(resume_command(live.run.branch, live.run.id)), language=None)


def _running(reader: Reader) -> list[LiveRun]:
    running = reader.history.summaries(RunFilter(state=RunState.RUNNING), limit=MOST_LIVE)
    known = [(run, reader.history.progress(run.id)) for run in running]
    return live_runs(known, datetime.now(UTC), reader.alive)


if __name__ == "__main__":
    draw()
