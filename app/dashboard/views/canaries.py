"""Canaries: must-pass outcomes, rates, margins, and what reference and branch answered, side by side, as raw text."""

import shlex

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.charts import margin_scatter
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.item_lines import ItemLines, read_lines, read_whole
from q36eval.app.dashboard.drawing.items import draw_item
from q36eval.app.dashboard.drawing.parts import (
    chart,
    choose_run,
    csv_button,
    drawn_rows,
    page_of,
    reader_or_stop,
    table,
    verdict_badge,
)
from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.canaries import (
    MARGIN_COLUMNS,
    OTHER_COLUMNS,
    RATE_COLUMNS,
    CanaryRun,
    failure_rows,
    margin_rows,
    must_pass_rows,
    must_pass_words,
    other_rows,
    rate_rows,
    table_rows,
)
from q36eval.app.figures.canary_items import (
    OUTCOMES,
    Filter,
    MarginPoint,
    asked_for,
    counts_by_canary,
    margin_points,
    margin_words,
    outcome_label,
    reasons,
    risk_rows,
    select,
)
from q36eval.app.figures.canary_lanes import LANES, CanaryLanes
from q36eval.canaries.outcomes import AT_RISK_NATS
from q36eval.history import RunRecord
from q36eval.metrics import ALL
from q36eval.records import ItemOutcome, ProbeName

ITEMS_PER_PAGE = 5
CONFIRMED = "confirmed"
FIELDS = {"canary": "Canary", "outcome": "Outcome", "lane": "Lane", "standing": "Standing"}
SWITCHES = {"flips": "Flips only", "must": "Must-pass only"}
FIELD_WIDTH = 190
CONFIRMED_CHOICE = "confirmed flips that count"
CONFIRMED_WORDS = "Confirmed: required prompts that flipped in every batch and that the gate counts, of"


def draw() -> None:
    """The page."""
    page_head("Canaries")
    reader = reader_or_stop()
    run = choose_run(reader, "canaries_run")
    verdict_badge(run.verdict)
    lines = read_lines(reader, run, ProbeName.CANARIES)
    if not lines.items:
        _draw_empty(reader, run)
        return
    figures = CanaryRun.of(reader.measurements(run), lines.items)
    st.text(line(must_pass_words(figures)))
    asked = any(name in st.query_params for name in ("item", *FIELDS, *SWITCHES))
    # open where somebody comes to look around, closed where a link asks for answers; and it stays as it was then
    title, around = "Rates, margins and checks", not asked or "tab" in st.query_params
    shown = address.expander(title, "figures", f"canary_figures {run.id}", expanded=around, keeps=True)
    if shown.open:
        with shown:
            _draw_figures(figures, run.id)
    _draw_answers(reader, run, lines)


def _draw_empty(reader: Reader, run: RunRecord) -> None:
    st.warning("No canary was evaluated in this run.")
    for failure in reader.failures(run):
        st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
    st.caption("This evaluates them all:")
    st.code(line(f"q36eval canaries --branch {shlex.quote(run.branch)}"), language=None)


def _draw_figures(run: CanaryRun, name: str) -> None:
    """What the questions come to, a tab each; what has nothing to show is left out, as of older runs."""
    points, undrawn = margin_points(run.items)
    tables = {
        "Must-pass, not passed": must_pass_rows(run),
        "Outcomes": counts_by_canary(run.items),
        "Pass rates": table_rows(RATE_COLUMNS, rate_rows(run)),
        "Decisive margins": table_rows(MARGIN_COLUMNS, margin_rows(run)),
        f"At risk: right, by less than {AT_RISK_NATS:g} nats": risk_rows(run.items),
        "Failed checks": failure_rows(run.items),
        "Other figures": table_rows(OTHER_COLUMNS, other_rows(run)),
    }
    shown = [title for title, rows in tables.items() if rows or (title == "Decisive margins" and points)]
    for title, tab in zip(shown, address.tabs("tab", "canaries_tab", shown), strict=True):
        if not tab.open:
            continue
        with tab:
            if title == "Decisive margins":
                _draw_margins(points, undrawn, name)
            if tables[title]:
                table(tables[title], title, f"canaries {name} {title.partition(':')[0]}")


def _draw_margins(points: list[MarginPoint], undrawn: int, name: str) -> None:
    if points:
        st.text("Each question: below the dashed line the branch is less sure than the reference.")
        chart(margin_scatter(points), "Decisive margin, reference against branch", f"margins {name}")
        columns = {"name": "question", "reference": "reference, nats", "branch": "branch, nats", "outcome": "outcome"}
        csv_button(drawn_rows(points, columns), "each question's margins", f"margins of questions {name}")
    if undrawn:
        st.text(f"{undrawn} questions have a margin that is infinite or no number, and are not drawn.")


def _draw_answers(reader: Reader, run: RunRecord, lines: ItemLines) -> None:
    st.header("Answers", anchor=False)
    named = st.query_params.get("item")
    if named:
        shown_items = asked_for(lines.items, named, st.query_params.get("canary"))
        st.button("Show all questions", key="canary_all", on_click=address.forget, args=("item", *FIELDS, *SWITCHES))
        if not shown_items:
            st.warning("This run has no question of that name or key:")
            st.text(line(named))
    else:
        lanes = reader.canary_lanes(run)
        chosen = _choose_filter(lines, lanes)
        shown_items = [] if chosen is None else select(lines.items, chosen, lanes)
        if chosen is not None and chosen.confirmed_only:
            st.text(f"{CONFIRMED_WORDS} {'any lane' if chosen.lane == ALL else f'lane {chosen.lane}'}.")
    st.caption(f"{len(shown_items)} of {len(lines.items)} questions, regressions first.")
    csv_button([_answer_row(item) for item in shown_items], "the questions listed here", f"canary questions {run.id}")
    shown = page_of(shown_items, ITEMS_PER_PAGE, "canaries_page")
    for item in read_whole(reader, run, lines, shown):
        draw_item(item, run)
    if not shown_items and not named:
        st.text("No question fits these filters.")


def _answer_row(item: ItemOutcome) -> dict[str, str]:
    return {
        "canary": item.group,
        "question": item.cluster,
        "key": item.item_key,
        "must pass": "yes" if item.must_pass else "no",
        "outcome": outcome_label(item)[0],
        "margin": margin_words(item) or "",
        "why": "; ".join(reasons(item.branch)),
    }


def _choose_filter(lines: ItemLines, lanes: CanaryLanes) -> Filter | None:
    """The filters, which the address holds where they differ from what is shown without any; None where it asks for
    what this run does not have."""
    fields: dict[str, list[str]] = {
        "canary": [ALL, *sorted({item.group for item in lines.items})],
        "outcome": list(OUTCOMES),
        "lane": [ALL, *(lane for lane in LANES if lane in lanes.canaries)],
        "standing": [ALL, CONFIRMED],
    }
    unknown = address.asks_for_none({name: (FIELDS[name], options) for name, options in fields.items()})
    chosen = {}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        for name, options in fields.items():
            if len(options) > 1:
                kept = address.choice(name, f"canary_{name}", options)
                chosen[name] = st.selectbox(FIELDS[name], options, format_func=_choice, width=FIELD_WIDTH, **kept)
        switched = {
            name: st.toggle(words, **address.switch(name, f"canary_{name}")) for name, words in SWITCHES.items()
        }
    if unknown:
        return None
    return Filter(
        canary=chosen.get("canary", ALL),
        outcome=chosen.get("outcome", ALL),
        lane=chosen.get("lane", ALL),
        confirmed_only=chosen.get("standing", ALL) == CONFIRMED,
        flips_only=switched["flips"],
        must_pass_only=switched["must"],
    )


def _choice(value: str) -> str:
    return CONFIRMED_CHOICE if value == CONFIRMED else line(value)


if __name__ == "__main__":
    draw()
