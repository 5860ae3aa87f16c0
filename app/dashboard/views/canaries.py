"""Canaries: fixed prompts, rates, margins, and both models' answers, side by side, as raw text."""

import streamlit as st

from q36eval.app.dashboard.drawing.items import draw_item
from q36eval.app.dashboard.drawing.parts import (
    choice,
    csv_button,
    nothing_measured,
    page_of,
    probe_page,
    table,
)
from q36eval.app.dashboard.escape import line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.canaries import (
    CanaryRun,
    failure_rows,
    margin_rows,
    must_pass_rows,
    must_pass_words,
    other_rows,
    rate_rows,
)
from q36eval.app.figures.canary_items import (
    OUTCOMES,
    PROMPTS,
    Filter,
    asked_for,
    counts_by_canary,
    margin_words,
    outcome_label,
    reasons,
    risk_rows,
    select,
)
from q36eval.app.figures.canary_lanes import LANES
from q36eval.canaries.outcomes import AT_RISK_NATS
from q36eval.history import RunRecord
from q36eval.records import ItemOutcome, ProbeName

ITEMS_PER_PAGE = 25


def draw() -> None:
    """The page."""
    reader, run = probe_page("Canaries")
    items = reader.items(run, ProbeName.CANARIES)
    if not items:
        nothing_measured("No canary was evaluated in this run.", reader, run, "canaries")
        return
    figures = CanaryRun.of(reader.measurements(run), items)
    st.text(line(must_pass_words(figures)))
    with st.expander("Rates, margins and checks", expanded=len(st.query_params) == 1):
        _draw_figures(figures, run.id)
    _draw_answers(reader, run, items)


def _draw_figures(run: CanaryRun, name: str) -> None:
    """The figures, a tab each; an empty one is left out."""
    tables = {
        "Fixed prompts, not passed": must_pass_rows(run),
        "Outcomes": counts_by_canary(run.items),
        "Pass rates": rate_rows(run),
        "Decisive margins": margin_rows(run),
        f"At risk: right, by less than {AT_RISK_NATS:g} nats": risk_rows(run.items),
        "Failed checks": failure_rows(run.items),
        "Other figures": other_rows(run),
    }
    shown = {title: rows for title, rows in tables.items() if rows}
    for (title, rows), tab in zip(shown.items(), st.tabs(list(shown)), strict=True):
        with tab:
            table(rows, title, f"canaries {name} {title.partition(':')[0]}")


def _draw_answers(reader: Reader, run: RunRecord, items: list[ItemOutcome]) -> None:
    st.header("Answers", anchor=False)
    named, lanes = st.query_params.get("item"), reader.canary_lanes(run)
    if named:
        shown = asked_for(items, named)
        st.button("Show all questions", key="canary_all", on_click=lambda: st.query_params.pop("item"))
        if not shown:
            st.warning("This run has no question of that name or key:")
            st.text(line(named))
    else:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = Filter(
                canary=choice("Canary", "canary", sorted({item.group for item in items})),
                outcome=choice("Outcome", "outcome", list(OUTCOMES)),
                lane=choice("Lane", "lane", [lane for lane in LANES if lane in lanes.canaries]),
                prompts=choice("Prompts", "standing", list(PROMPTS)),
            )
        shown = select(items, chosen, lanes)
        if chosen.prompts == "confirmed":
            st.text("Confirmed: required prompts that flipped in every batch and that the gate counts.")
    st.caption(f"{len(shown)} of {len(items)} questions, regressions first.")
    csv_button([_answer_row(item) for item in shown], "the questions listed here", f"canary questions {run.id}")
    for item in page_of(shown, ITEMS_PER_PAGE, "canaries_page"):
        draw_item(item, run, required=lanes.requires(item))


def _answer_row(item: ItemOutcome) -> dict[str, str]:
    return {
        "canary": item.group,
        "question": item.cluster,
        "key": item.item_key,
        "fixed prompt": "yes" if item.must_pass else "no",
        "outcome": outcome_label(item)[0],
        "margin": margin_words(item) or "",
        "why": "; ".join(reasons(item.branch)),
    }


if __name__ == "__main__":
    draw()
