"""One item of canaries or evals: the end of its prompt, both answers side by side, and what is wrong with either."""

import streamlit as st

from q36eval.app.dashboard.drawing.side_by_side import block_html, side_by_side
from q36eval.app.dashboard.drawing.tables import FOLDER
from q36eval.app.dashboard.escape import label
from q36eval.app.figures.answers import diff_pieces, last_lines, shortened
from q36eval.app.figures.canary_items import choices, faults, margin_words, outcome_label, parting_words
from q36eval.app.figures.deciding_answers import item_name
from q36eval.app.figures.evals import answer_choices, flip_words
from q36eval.history import RunRecord
from q36eval.inert_text import html
from q36eval.records import Answer, ItemOutcome, ProbeName, Verdict
from q36eval.reports.story import stopped_early
from q36eval.reports.templates import render


def draw_item(item: ItemOutcome, run: RunRecord, *, required: bool = False) -> None:
    """The question, both answers with their differences, the point of divergence, and why an answer is wrong."""
    of_canary = item.probe is ProbeName.CANARIES
    with st.container(border=True):
        outcome, colour = outcome_label(item)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(outcome, color=colour)
            if required:
                st.badge("! REQUIRED", color="orange")
            st.page_link(
                f"views/{item.probe}.py",
                label=label(item_name(item)),
                icon=":material/link:",
                query_params={"run": run.id, "item": item.item_key[:16]},
                help="A link to this question alone",
            )
            decided = (
                run.report is not None and run.report.verdict is not Verdict.PASS and not stopped_early(run.report)
            )
            if decided and item.flip == "regression":
                st.page_link(
                    "views/review.py",
                    label=f"Waive {label(item.group)}" if of_canary else "Waive a criterion",
                    icon=":material/rate_review:",
                    query_params={"run": run.id, **({"waive": item.group} if of_canary else {})},
                )
        _draw_asked(item)
        titles = (
            f"Reference: {_score_words(item.reference, 'reference')}",
            f"Branch: {_score_words(item.branch, 'branch')}",
        )
        likely = choices(item) if of_canary else answer_choices(item)
        of_choices = "How likely each choice was, among the choices" if likely else None
        pieces = diff_pieces(item.reference.text or "", item.branch.text or "")
        side_by_side(titles, pieces, parting_words(item) if of_canary else of_choices, likely)
        _draw_notes(item, of_canary)


def _draw_asked(item: ItemOutcome) -> None:
    """The last lines of the prompt; a click shows all of it with the expected answer."""
    whole = None if item.prompt is None else shortened(item.prompt)
    texts, end = (("The whole prompt", whole), ("Expected", item.expected)), last_lines(item.prompt or "")
    st.html(render("asked.html.j2", html, FOLDER, texts=texts, end=end, block=block_html))


def _draw_notes(item: ItemOutcome, of_canary: bool) -> None:
    """Why an answer is wrong in plain words, each with the check's own name behind, then how near the choice was."""
    sides = (("Reference", item.reference), ("Branch", item.branch))
    notes = [(f"✗ {side}: {words}", source) for side, answer in sides for words, source in faults(answer)]
    notes.append(("", (margin_words(item) or "") if of_canary else flip_words(item)))
    st.html(render("notes.html.j2", html, FOLDER, notes=notes))


def _score_words(answer: Answer, side: str) -> str:
    if answer.text is None and answer.score is not None:
        return "no text was kept"
    if answer.score is None:
        return "not scored" if answer.unreadable is None else "cannot be read"
    score = {1.0: "right", 0.0: "wrong"}.get(answer.score, f"score {answer.score:.3g}")
    return score if (answer.text or "").strip() else f"{score}, the {side} answered nothing"
