"""One item: its prompt, both answers side by side, where they part, and what is wrong with either."""

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.side_by_side import side_by_side
from q36eval.app.dashboard.escape import block, label, line
from q36eval.app.figures.answers import diff_pieces
from q36eval.app.figures.canary_items import choices, margin_words, outcome_label, parting_words, reasons
from q36eval.app.figures.deciding_answers import deciding_answer
from q36eval.history import RunRecord
from q36eval.records import Answer, ItemOutcome, ProbeName

PROMPT_HEIGHT = 150  # pixels; a longer one scrolls
LINES_WHOLE, CHARACTERS_WHOLE = 4, 300


def draw_item(item: ItemOutcome, run: RunRecord, *, prompt_first: bool = False) -> None:
    """Both answers with what differs, where they part, and why an answer is wrong; on request the prompt above them."""
    with st.container(border=True):
        outcome, colour = outcome_label(item)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(outcome, color=colour)
            if item.must_pass:
                st.badge("! MUST PASS", color="orange")
            name = deciding_answer(item).name
            of_canary = item.probe is ProbeName.CANARIES
            group = {"canary": item.group} if of_canary else {}
            st.page_link(
                f"views/{item.probe}.py",
                label=label(name),
                icon=":material/link:",
                query_params={"run": run.id, **group, "item": item.item_key[:16]},
                help="A link to this question alone",
            )
            if item.flip == "regression" and run.report is not None:
                st.page_link(
                    "views/review.py",
                    label=f"Waive {label(item.group)}" if of_canary else "Waive a criterion",
                    icon=":material/rate_review:",
                    query_params={"run": run.id, **group},
                )
        if prompt_first and item.prompt is not None:
            long = item.prompt.count("\n") > LINES_WHOLE or len(item.prompt) > CHARACTERS_WHOLE
            with st.container(height=PROMPT_HEIGHT if long else "content", border=False):
                st.code(block(item.prompt), language=None, wrap_lines=True)
        _draw_texts(item)
        margin = margin_words(item)
        if margin is not None:
            st.text(line(margin))
        for side, answer in (("reference", item.reference), ("branch", item.branch)):
            for failure in reasons(answer):
                st.text(f"✗ {side}: {line(failure)}")
        left, right = st.columns(2)
        texts = [("Expected", left, item.expected), ("Prompt", right, None if prompt_first else item.prompt)]
        for title, column, text in texts:
            if text is not None:
                name = f"{title.lower()}-{item.item_key[:16]}"
                with column:
                    shown = address.expander(title, name, f"{title} {item.probe} {item.group} {item.item_key}")
                if shown.open:
                    shown.code(block(text), language=None, wrap_lines=True)


def _draw_texts(item: ItemOutcome) -> None:
    reference, branch = (item.reference.text or "", item.branch.text or "")
    titles = (
        f"Reference: {_score_words(item.reference, 'reference')}",
        f"Branch: {_score_words(item.branch, 'branch')}",
    )
    pieces = diff_pieces(reference, branch)
    side_by_side(titles, pieces, parting_words(item), choices(item))


def _score_words(answer: Answer, side: str) -> str:
    if answer.text is None and answer.score is not None:
        return "no text was kept"
    if answer.score is None:
        return "not scored" if answer.unreadable is None else "cannot be read"
    score = {1.0: "right", 0.0: "wrong"}.get(answer.score, f"score {answer.score:.3g}")
    return score if (answer.text or "").strip() else f"{score}, the {side} answered nothing"
