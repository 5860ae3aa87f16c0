"""One item: its prompt, both answers side by side, where they part, and what is wrong with either."""

import streamlit as st

from q36eval.app.dashboard.drawing.side_by_side import side_by_side
from q36eval.app.dashboard.escape import block, label, line
from q36eval.app.figures.answers import diff_pieces
from q36eval.app.figures.canary_items import choices, margin_words, outcome_label, parting_words, reasons
from q36eval.app.figures.deciding_answers import deciding_answer
from q36eval.history import RunRecord
from q36eval.records import Answer, ItemOutcome, ProbeName


def draw_item(item: ItemOutcome, run: RunRecord, *, prompt_first: bool = False) -> None:
    """Both answers with what differs, where they part, and why an answer is wrong; on request the prompt is open."""
    with st.container(border=True):
        outcome, colour = outcome_label(item)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(outcome, color=colour)
            if item.must_pass:
                st.badge("! MUST PASS", color="orange")
            of_canary = item.probe is ProbeName.CANARIES
            st.page_link(
                f"views/{item.probe}.py",
                label=label(deciding_answer(item).name),
                icon=":material/link:",
                query_params={"run": run.id, "item": item.item_key[:16]},
                help="A link to this question alone",
            )
            if item.flip == "regression" and run.report is not None:
                st.page_link(
                    "views/review.py",
                    label=f"Waive {label(item.group)}" if of_canary else "Waive a criterion",
                    icon=":material/rate_review:",
                    query_params={"run": run.id, **({"waive": item.group} if of_canary else {})},
                )
        with st.expander("Prompt and expected answer", expanded=prompt_first):
            for text in (item.prompt, item.expected):
                if text is not None:
                    st.code(block(text), language=None, wrap_lines=True)
        titles = (
            f"Reference: {_score_words(item.reference, 'reference')}",
            f"Branch: {_score_words(item.branch, 'branch')}",
        )
        pieces = diff_pieces(item.reference.text or "", item.branch.text or "")
        side_by_side(titles, pieces, parting_words(item), choices(item))
        margin = margin_words(item)
        if margin is not None:
            st.text(line(margin))
        for side, answer in (("reference", item.reference), ("branch", item.branch)):
            for failure in reasons(answer):
                st.text(f"✗ {side}: {line(failure)}")


def _score_words(answer: Answer, side: str) -> str:
    if answer.text is None and answer.score is not None:
        return "no text was kept"
    if answer.score is None:
        return "not scored" if answer.unreadable is None else "cannot be read"
    score = {1.0: "right", 0.0: "wrong"}.get(answer.score, f"score {answer.score:.3g}")
    return score if (answer.text or "").strip() else f"{score}, the {side} answered nothing"
