"""Evals: what a run's branch kept of the reference's scores, by task and by length, and every answer that flipped."""

import shlex

import streamlit as st

from q36eval.app.dashboard.drawing.charts import interval_figure
from q36eval.app.dashboard.drawing.parts import (
    chart,
    choice,
    choose_run,
    csv_button,
    nothing_measured,
    page_head,
    page_of,
    reader_or_stop,
    table,
    verdict_badge,
)
from q36eval.app.dashboard.drawing.side_by_side import side_by_side
from q36eval.app.dashboard.escape import block, label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.answers import diff_pieces, shortened
from q36eval.app.figures.evals import (
    DIRECTIONS,
    answer_choices,
    answer_words,
    flip_rows,
    flip_words,
    flips_of,
    group_rows,
    length_rows,
    perplexity_rows,
    select,
    task_rows,
)
from q36eval.history import RunRecord
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, recovery_asked
from q36eval.reports.plots import RECOVERY, recovery_rows
from q36eval.reports.text import number

FLIPS_PER_PAGE = 5


def draw() -> None:
    """The page."""
    page_head("Evals")
    reader = reader_or_stop()
    run = choose_run(reader, "evals_run")
    verdict_badge(run.verdict)
    figures = EvalsFigures(reader.measurements(run))
    if not figures.measured:
        command = f"q36eval evals --branch {shlex.quote(run.branch)}"
        nothing_measured("No item of the evals was scored in this run.", reader.history.failures(run.id), command)
        return
    _draw_groups(figures, run)
    _draw_flips(reader, run)


def _draw_groups(figures: EvalsFigures, run: RunRecord) -> None:
    st.caption("The same items for reference and branch. Recovery is the branch's score over the reference's.")
    table(group_rows(figures), "Score, recovery and flips by group", f"evals {run.id}")
    points = recovery_rows(run.report, figures)
    if points:
        chart(interval_figure(points, RECOVERY), "Recovery by group and task", f"recovery {run.id}")
    with st.expander("Answers that are not right, and what the reference cannot do"):
        for sentence in answer_words(figures) or ["Not known of this run."]:
            st.text(line(sentence))
    lengths = effective_lengths(figures, {} if run.report is None else recovery_asked(run.report))
    for group in figures.groups():
        tasks = task_rows(figures, group.name)
        if tasks:
            with st.expander(f"{label(group.name)} by task"):
                table(tasks, "Figures by task", f"{group.name} by task {run.id}")
        if group.name in lengths:
            st.text(line(f"{group.name}: {effective_words(lengths[group.name])}"))
            with st.expander(f"{label(group.name)} by length in tokens"):
                table(length_rows(figures, group.name), "Figures by length", f"{group.name} by length {run.id}")
    perplexities = perplexity_rows(figures)
    if perplexities:
        table(perplexities, "Perplexity and its ratio", f"perplexity {run.id}")


def _draw_flips(reader: Reader, run: RunRecord) -> None:
    st.header("Flips", anchor=False)
    flips = flips_of(reader.items(run, ProbeName.EVALS, flips_only=True))
    named = st.query_params.get("item")
    if named:
        chosen = [flip for flip in flips if len(named) >= 8 and flip.item_key.startswith(named)]
        st.button("Show all flips", key="evals_all", on_click=lambda: st.query_params.pop("item"))
        if not chosen:
            st.warning("This run has no flip of that key:")
            st.text(line(named))
    else:
        with st.container(horizontal=True):
            group = choice("Group", "group", sorted({flip.group for flip in flips}))
            chosen = select(flips, group, choice("Direction", "direction", list(DIRECTIONS)))
    st.caption(f"{len(chosen)} of {len(flips)} flips, lost ones first, in each the largest first.")
    for flip in page_of(chosen, FLIPS_PER_PAGE, "evals_page"):
        _draw_flip(flip, run)
    csv_button(flip_rows(chosen), "the flips listed here", f"flips {run.id}")


def _draw_flip(flip: ItemOutcome, run: RunRecord) -> None:
    with st.container(border=True):
        lost = flip.flip == "regression"
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge("✗ LOST" if lost else "↑ GAINED", color="red" if lost else "blue")
            st.text(line(flip_words(flip)))
            name = f"Link to this item :small[{label(flip.stratum or flip.group)} {flip.item_key[:6]}]"
            query = {"run": run.id, "item": flip.item_key[:16]}
            st.page_link("views/evals.py", label=name, icon=":material/link:", query_params=query)
        sides = (_said(flip.reference), _said(flip.branch))
        titles = (f"Reference: score {number(flip.reference.score)}", f"Branch: score {number(flip.branch.score)}")
        choices = answer_choices(flip)
        parting = "How likely each choice was, among the choices" if choices else None
        side_by_side(titles, diff_pieces(*sides), parting, choices)
        with st.expander("Prompt and expected answer"):
            for text in (flip.prompt, flip.expected):
                if text is not None:
                    st.code(block(shortened(text)), language=None, wrap_lines=True)


def _said(answer: Answer) -> str:
    return answer.text if answer.text is not None else f"({answer.error or 'no text was kept'})"


if __name__ == "__main__":
    draw()
