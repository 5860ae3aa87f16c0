"""Overview: what may ship in each family, one row a branch with what to do next, and what is being measured now."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.parts import page_offset, reader_or_stop
from q36eval.app.dashboard.drawing.sparkline import SparkPoint, sparkline, words
from q36eval.app.dashboard.drawing.standing import lanes_words, policies_words
from q36eval.app.dashboard.inert import label, line, name
from q36eval.app.dashboard.models.banner import Banner, banner, of_banner, sentence
from q36eval.app.dashboard.models.front import SHIPS, Button, Front, Standing, drifting, in_order
from q36eval.app.dashboard.models.overview import LiveRun, drift_need, live_runs, resume_command
from q36eval.app.dashboard.reading import Reader, fronts
from q36eval.app.shipping import Fronts
from q36eval.drift import FEWEST_RUNS
from q36eval.history import BranchKey, RunFilter, RunProgress, RunState

WIDTHS = (2.2, 4.2, 1.9, 2.0)
BRANCHES_PER_PAGE = 10
RUNS_DRAWN = 20
SPARK_METRIC = "kl.kl_divergence[all]"
LIVE_EVERY_S = 2.0
MOST_LIVE = 20

EVERYTHING, NEEDS, BLOCKED = "All", "Needs a person", "Blocked"
TEXT, WHICH = "q", "show"  # of the filters, in the address

_PAGES = {
    Button.RUN: "run",
    Button.WHY: "run",
    Button.MISSING: "run",
    Button.PROMPTS: "canaries",
    Button.SIGN: "review",
    Button.WAIVERS: "review",
    Button.BLESS: "review",
    Button.DRIFT: "branch",
}

_BANNER_STYLE = """<style>.banner { font-size: 1.05rem; line-height: 1.6; margin: 0 0 .5rem; overflow-wrap: anywhere; }
.banner code { font-size: .95em; white-space: nowrap; } .banner b { font-weight: 650; }
.stMarkdownBadge { white-space: normal !important; }</style>"""


def draw() -> None:
    """The page."""
    page_head("What may ship")
    reader = reader_or_stop()
    known = fronts(reader, datetime.now(UTC))
    rows = in_order(known.all())
    st.html(_BANNER_STYLE)
    banners = st.empty()
    named = _draw_banners(known, rows, banners)
    st.fragment(_draw_live, run_every=LIVE_EVERY_S)(reader)
    shown, offset = _choose(rows)
    drawn = known.with_reports(shown[offset : offset + BRANCHES_PER_PAGE])
    places = [_draw_row(reader, row) for row in drawn]
    if not shown:
        st.info("No branch is like this. Choose All, or clear the field.")
    _draw_silent(reader)
    st.caption(f"History: {label(reader.shown)}")
    kept = reader.kept_drifts()
    found = {}
    at = {row.row.key: place for row, place in zip(drawn, places, strict=True)}
    for row in rows:  # last: what is not kept takes a second each
        if not (row.row.key in at or row.row.key in named):
            continue
        if row.row.key in kept or not row.ships or row.row.of.runs < FEWEST_RUNS:
            continue
        need = drift_need(reader.drift(*row.row.key))
        if need is not None:
            found[row.row.key] = need.words
    for row in drawn:
        if row.row.key in found:
            moved = drifting(row, found[row.row.key])
            chip, why = at[row.row.key]
            chip.badge(label(moved.chip), color=moved.colour)
            why.text(line(moved.why))
    if found:
        _draw_banners(known, rows, banners, found)


def _draw_banners(
    known: Fronts, rows: Sequence[Front], place: DeltaGenerator, moved: Mapping[BranchKey, str] = {}
) -> set[BranchKey]:
    """In one place, where they are drawn again once it is known what drifts (`moved`); returns whom they name."""
    told, named = [], set()
    for family in sorted({row.row.of.family for row in rows}):
        declared = known.rules[family].branches
        members, more = of_banner([row for row in rows if row.row.of.family == family], declared)
        reported = [drifting(row, moved.get(row.row.key)) for row in known.with_reports(members)]
        told.append(_banner_html(banner(family, reported, declared, more)))
        named |= {row.row.key for row in members}
    place.html("".join(told))
    return named


def _banner_html(told: Banner) -> str:
    """Names and reasons are escaped: a branch is called what somebody called it."""
    marked = sentence(told, escape, lambda words: f"<b>{words}</b>", lambda words: f"<code>{words}</code>")
    return f'<p class="banner">{marked}</p>'


def _choose(rows: list[Front]) -> tuple[list[Front], int]:
    """The rows under the reader's filter, which the address keeps, and where the page of them begins."""
    choices = (EVERYTHING, NEEDS, BLOCKED)
    with st.popover("Filter", icon=":material/filter_list:", type="tertiary"):
        text = st.text_input("Branch or family holds", **address.typed(TEXT, "overview_text")).strip()
        which = st.segmented_control("Show", choices, required=True, **address.choice(WHICH, "overview_which", choices))
    shown = [
        row
        for row in rows
        if text.lower() in f"{row.row.of.family} {row.row.of.branch}".lower()
        and (which != NEEDS or row.standing not in (*SHIPS, Standing.REFERENCE))
        and (which != BLOCKED or row.standing is Standing.BLOCKED)
    ]
    return shown, page_offset(len(shown), BRANCHES_PER_PAGE, "overview_page")


def _draw_row(reader: Reader, row: Front) -> tuple[DeltaGenerator, DeltaGenerator]:
    """Draws it; returns the places of its chip and its sentence, which drift that is found later changes."""
    of = row.row.of
    with st.container(border=True):
        heading, state, spark, button = st.columns(WIDTHS, vertical_alignment="center")
        heading.page_link(
            "views/branch.py",
            label=f"**{label(name(of.branch))}**",
            query_params={"branch": of.branch, "family": of.family},
        )
        chip, why = heading.empty(), state.empty()
        chip.badge(label(row.chip), color=row.colour)
        why.text(line(row.why))
        state.caption(f"{lanes_words(row)} · {row.row.freshness}{policies_words(row)}")
        for need in row.row.needs:
            if need.command is not None:
                state.text(line(need.words))
                state.code(line(need.command), language=None, wrap_lines=True)
        _draw_spark(reader, row, spark)
        page, asked = _PAGES[row.button], {"run": row.run.id}
        if page == "branch":
            asked = {"branch": of.branch, "family": of.family}
        elif row.button is Button.PROMPTS:
            asked |= {"outcome": "regression", "must": "yes"}
            if row.worst.lane is not None:
                asked |= {"lane": row.worst.lane.value, "standing": "confirmed"}
        button.page_link(
            f"views/{page}.py",
            label=row.button_words(label(name(of.branch))),
            icon=":material/arrow_forward:",
            query_params=asked,
        )
    return chip, why


def _draw_spark(reader: Reader, row: Front, place: DeltaGenerator) -> None:
    of = row.row.of
    figures = reader.figures(of.family, of.branch, SPARK_METRIC, RUNS_DRAWN)
    newest = reader.summaries(RunFilter(family=of.family, branch=of.branch, state=RunState.FINISHED), limit=RUNS_DRAWN)
    points = [SparkPoint(figures.get(run.id, float("nan")), run.verdict) for run in reversed(newest)]
    if points:
        place.image(sparkline(points, row.margin), alt=words(points, "KL in nats/token", row.margin))


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
