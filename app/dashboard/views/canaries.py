"""Canaries: must-pass outcomes, rates, margins, and what reference and branch answered, side by side, as raw text."""

import streamlit as st

from app.canary_details import reasons
from app.canary_figures import (
    MARGIN_COLUMNS,
    OTHER_COLUMNS,
    RATE_COLUMNS,
    CanaryRun,
    margin_rows,
    must_pass_words,
    other_rows,
    rate_rows,
    table_rows,
)
from app.dashboard.canary_charts import margin_scatter
from app.dashboard.canary_model import (
    ALL,
    OUTCOMES,
    Filter,
    MarginPoint,
    counts_by_canary,
    diff_text,
    failure_rows,
    margin_points,
    must_pass_rows,
    outcome_label,
    parting_rows,
    parting_words,
    risk_rows,
    select,
)
from app.dashboard.inert import block, line
from app.dashboard.parts import choose_run, page_of, plain_table, reader_or_stop, verdict_badge
from canaries.risk import AT_RISK_NATS
from q36eval.records import Answer, ItemOutcome

ITEMS_PER_PAGE = 10


def draw() -> None:
    """The page."""
    st.title("Canaries")
    reader = reader_or_stop()
    run = choose_run(reader, "canaries_run")
    verdict_badge(run.verdict)
    items = reader.canaries(run)
    if not items:
        st.warning("No canary was asked in this run.")
        for failure in reader.failures(run):
            st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
        return
    _draw_figures(CanaryRun.of(reader.measurements(run), items))
    st.subheader("Answers", anchor=False)
    found = select(items, _choose_filter(items))
    st.caption(f"{len(found)} of {len(items)} questions, regressions first.")
    for item in page_of(found, ITEMS_PER_PAGE, "canaries_page"):
        _draw_item(item)


def _draw_figures(run: CanaryRun) -> None:
    """What the questions come to, a tab each; what has nothing to show is left out, as of older runs."""
    st.text(line(must_pass_words(run)))
    must = must_pass_rows(run)
    if must:
        plain_table(must, "Must-pass prompts that did not pass")
    points, undrawn = margin_points(run.items)
    tables = {
        "Outcomes": counts_by_canary(run.items),
        "Pass rates": table_rows(RATE_COLUMNS, rate_rows(run)),
        "Decisive margins": table_rows(MARGIN_COLUMNS, margin_rows(run)),
        f"At risk: right, by less than {AT_RISK_NATS:g} nats": risk_rows(run.items),
        "Failed checks": failure_rows(run.items),
        "Other figures": table_rows(OTHER_COLUMNS, other_rows(run)),
    }
    shown = [title for title, rows in tables.items() if rows or (title == "Decisive margins" and points)]
    for title, tab in zip(shown, st.tabs(shown), strict=True):
        with tab:
            if title == "Decisive margins":
                _draw_margins(points, undrawn)
            if tables[title]:
                plain_table(tables[title], title)


def _draw_margins(points: list[MarginPoint], undrawn: int) -> None:
    if points:
        st.text("Each question: below the dashed line the branch is less sure than the reference.")
        st.plotly_chart(margin_scatter(points), key="canary margins", alt="Decisive margin, reference against branch")
    if undrawn:
        st.text(f"{undrawn} questions have a margin that is infinite or no number, and are not drawn.")


def _choose_filter(items: list[ItemOutcome]) -> Filter:
    canary, outcome, flips, must_pass = st.columns((2, 2, 1, 1), vertical_alignment="bottom")
    groups = [ALL, *sorted({item.group for item in items})]
    return Filter(
        canary=canary.selectbox("Canary", groups, key="canary_group", format_func=line),
        outcome=outcome.selectbox("Outcome", list(OUTCOMES), key="canary_outcome"),
        flips_only=flips.toggle("Flips only", key="canary_flips"),
        must_pass_only=must_pass.toggle("Must-pass only", key="canary_must"),
    )


def _draw_item(item: ItemOutcome) -> None:
    with st.container(border=True):
        label, colour = outcome_label(item)
        with st.container(horizontal=True):
            st.badge(label, color=colour)
            if item.must_pass:
                st.badge("! MUST PASS", color="orange")
            st.text(line(f"{item.group} · {item.cluster} · {item.item_key[:12]}"))
        left, right = st.columns(2)
        with left:
            _draw_answer("Reference", item.reference)
        with right:
            _draw_answer("Branch", item.branch)
        _draw_parting(item)
        if item.expected is not None:
            st.caption("Expected")
            st.code(block(item.expected), language=None, wrap_lines=True)
        if item.prompt is not None:
            with st.expander("Prompt"):
                st.code(block(item.prompt), language=None, wrap_lines=True)
        if item.reference.text is not None and item.branch.text is not None and item.reference.text != item.branch.text:
            with st.expander("Difference: [-only the reference-] {+only the branch+}"):
                st.code(diff_text(block(item.reference.text), block(item.branch.text)), language=None, wrap_lines=True)


def _draw_parting(item: ItemOutcome) -> None:
    words, rows = parting_words(item), parting_rows(item)
    if words is not None:
        st.text(line(words))
    if rows:
        plain_table(rows, "The likeliest tokens of both where the answers part")


def _draw_answer(side: str, answer: Answer) -> None:
    st.caption(f"{side}: {_score_words(answer)}")
    if answer.text is not None:
        st.code(block(answer.text), language=None, wrap_lines=True)
    for failure in reasons(answer):
        st.text(f"✗ {line(failure)}")


def _score_words(answer: Answer) -> str:
    if answer.score is None:
        return "not scored"
    return {1.0: "right", 0.0: "wrong"}.get(answer.score, f"score {answer.score:.3g}")


if __name__ == "__main__":
    draw()
