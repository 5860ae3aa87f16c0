"""Overview: what may ship in each family, one row a branch with what to do next, and what is being measured now."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.parts import page_offset, reader_or_stop
from q36eval.app.dashboard.drawing.standing import lanes_words, policies_words
from q36eval.app.dashboard.escape import label, line, name
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.banner import MOST_IN_BANNER, sentence
from q36eval.app.dashboard.models.overview import LiveRun, freshness, live_runs, needs_of, resume_command
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.standing import SHIPS, BranchStanding, Standing, Standings, in_order
from q36eval.history import RunFilter, RunProgress, RunState
from q36eval.reports.text import number
from q36eval.reports.ui_address import evidence_place

WIDTHS = (2.2, 4.2, 1.9, 2.0)
BRANCHES_PER_PAGE = 10
RUNS_DRAWN = 20
KL_METRIC = "kl.kl_divergence[all]"
LIVE_EVERY_S = 2.0
MOST_LIVE = 20

EVERYTHING, NEEDS, BLOCKED = "All", "Needs a person", "Blocked"
TEXT, WHICH = "q", "show"  # of the filters, in the address

_BANNER_STYLE = """<style>.banner { font-size: 1.05rem; line-height: 1.6; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.banner code { font-size: .95em; white-space: nowrap; } .banner b { font-weight: 650; }
.stMarkdownBadge { white-space: normal !important; }</style>"""


def draw() -> None:
    """The page."""
    page_head("What may ship")
    reader = reader_or_stop()
    known = Standings(reader, datetime.now(UTC))
    rows = in_order(known.all())
    st.html(f"{_BANNER_STYLE}{''.join(_banners(known, rows))}")
    st.fragment(_draw_live, run_every=LIVE_EVERY_S)(reader)
    shown, offset = _choose(rows)
    for row in shown[offset : offset + BRANCHES_PER_PAGE]:
        _draw_row(reader, known.of(row.key))
    if not shown:
        st.info("No branch is like this. Choose All, or clear the field.")
    _draw_silent(reader)
    st.caption(f"History: {label(reader.shown)}")


def _banners(known: Standings, rows: Sequence[BranchStanding]) -> Iterator[str]:
    """One for each family. Names and reasons are escaped: a branch is called what somebody called it."""
    for family in sorted({row.of.family for row in rows}):
        members = [row for row in rows if row.of.family == family]
        named = [known.of(row.key) for row in members[:MOST_IN_BANNER]] + members[MOST_IN_BANNER:]
        marked = sentence(family, named, escape, lambda words: f"<b>{words}</b>", lambda words: f"<code>{words}</code>")
        yield f'<p class="banner">{marked}</p>'


def _choose(rows: list[BranchStanding]) -> tuple[list[BranchStanding], int]:
    """The rows under the reader's filter, which the address keeps, and where the page of them begins."""
    choices = (EVERYTHING, NEEDS, BLOCKED)
    with st.popover("Filter", icon=":material/filter_list:", type="tertiary"):
        text = st.text_input("Branch or family holds", **address.typed(TEXT, "overview_text")).strip()
        which = st.segmented_control("Show", choices, required=True, **address.choice(WHICH, "overview_which", choices))
    shown = [
        row
        for row in rows
        if text.lower() in f"{row.of.family} {row.of.branch}".lower()
        and (which != NEEDS or row.standing not in (*SHIPS, Standing.REFERENCE))
        and (which != BLOCKED or row.standing is Standing.BLOCKED)
    ]
    return shown, page_offset(len(shown), BRANCHES_PER_PAGE, "overview_page")


def _draw_row(reader: Reader, row: BranchStanding) -> None:
    of, now = row.of, datetime.now(UTC)
    with st.container(border=True):
        heading, state, kl, button = st.columns(WIDTHS, vertical_alignment="center")
        heading.page_link(
            "views/branch.py",
            label=f"**{label(name(of.branch))}**",
            query_params={"branch": of.branch, "family": of.family},
        )
        heading.badge(label(row.chip), color=row.colour)
        state.text(line(row.why))
        state.caption(f"{lanes_words(row)} · {freshness(row, now)}{policies_words(row)}")
        for need in needs_of(row, now):
            if need.command is not None:
                state.text(line(need.words))
                state.code(line(need.command), language=None, wrap_lines=True)
        _draw_kl(reader, row, kl)
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


def _draw_kl(reader: Reader, row: BranchStanding, place: DeltaGenerator) -> None:
    """The newest KL and the one before, and the verdicts of the last runs, oldest first."""
    of = row.of
    figures = reader.figures(of.family, of.branch, KL_METRIC, RUNS_DRAWN)
    newest = reader.summaries(RunFilter(family=of.family, branch=of.branch, state=RunState.FINISHED), limit=RUNS_DRAWN)
    drawn = [figure for run in reversed(newest) if math.isfinite(figure := figures.get(run.id, math.nan))]
    if drawn:
        margin = "" if row.margin is None else f", margin {number(row.margin)}"
        before = f", {number(drawn[-2])} in the run before" if drawn[1:] else ""
        place.text(line(f"KL {number(drawn[-1])} nats/token{margin}{before}"))
    if newest:
        place.caption(label(" ".join(look_of(run.verdict).symbol for run in reversed(newest))))


def _draw_live(reader: Reader) -> None:
    """What is being measured now, a thin strip each; drawn again by itself."""
    seen = st.session_state.setdefault("overview_seen", {})
    for run in (run for run in _running(reader, seen) if not run.silent):
        strip, link = st.columns((1, 5), vertical_alignment="center")
        strip.progress(run.share or 0.0)
        said = f"Running: {name(run.branch)} · {run.words}"
        link.page_link("views/run.py", label=label(said), query_params={"run": run.id})


def _draw_silent(reader: Reader) -> None:
    silent = [run for run in _running(reader) if run.silent]
    if not silent:
        return
    runs = f"{len(silent)} run{'s' * (len(silent) != 1)}"
    title = f"Begun and never finished: {runs} without a sign of life"
    shown = address.expander(title, "unfinished", "overview_unfinished")
    if not shown.open:
        return
    with shown:
        st.text("Where the process is dead, each goes on where it stopped:")
        for run in silent:
            st.text(line(f"{run.branch} (family {run.family}): {run.words}"))
            st.code(line(resume_command(run.branch, run.id)), language=None)


def _running(reader: Reader, seen: dict[str, RunProgress] | None = None) -> list[LiveRun]:
    """What runs; `seen` keeps how far each stage was when it was first looked at."""
    running = reader.summaries(RunFilter(state=RunState.RUNNING), limit=MOST_LIVE)
    known = [(run, reader.progress(run.id)) for run in running]
    seen = {} if seen is None else seen
    for run, progress in known:
        if progress is not None and (run.id not in seen or seen[run.id].stage != progress.stage):
            seen[run.id] = progress
    return live_runs(known, datetime.now(UTC), reader.alive, seen)


if __name__ == "__main__":
    draw()
