"""Evals: the part of the reference's scores that a branch kept, by task and by length, and every flipped answer."""

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
from q36eval.app.dashboard.drawing.tables import Plot
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.evals import (
    DIRECTIONS,
    answer_words,
    flip_rows,
    flips_of,
    group_rows,
    length_rows,
    moved,
    moved_first,
    perplexity_rows,
    recovery_points,
    select,
    task_rows,
)
from q36eval.history import RunRecord
from q36eval.records import ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, judged_fewer, recovery_asked
from q36eval.reports.plots import RECOVERY

FLIPS_PER_PAGE = 25


def draw() -> None:
    """The page."""
    reader, run = probe_page("Evals")
    figures = EvalsFigures(reader.measurements(run))
    if not figures.measured:
        nothing_measured("No item of the evals was scored in this run.", reader, run, "evals")
        return
    _draw_groups(figures, run)
    _draw_flips(reader, run)


def _draw_groups(figures: EvalsFigures, run: RunRecord) -> None:
    st.caption(
        "The same items for reference and branch. Recovery is the branch's score divided by the reference's, with a "
        "separate interval: a criterion compares the loss with its margin, so its interval may differ."
    )
    for sentence in [] if run.report is None else judged_fewer(run.report):
        st.text(line(sentence))
    groups = figures.groups()
    drawn = Plot(recovery_points(groups, run.report), RECOVERY)
    table(group_rows(figures), "Score, recovery and flips by group", f"evals {run.id}", drawn)
    with st.expander("Answers that are not right, and what the reference cannot do"):
        for sentence in answer_words(figures) or ["Not known of this run."]:
            st.text(line(sentence))
    _draw_tasks(figures, run)
    lengths = effective_lengths(figures, {} if run.report is None else recovery_asked(run.report))
    for name, length in lengths.items():
        st.text(line(f"{name}: {effective_words(length)}"))
        with st.expander(f"{label(name)} by length in tokens"):
            table(length_rows(figures, name), "Figures by length", f"{name} by length {run.id}")
    perplexities = perplexity_rows(figures)
    if perplexities:
        table(perplexities, "Perplexity and its ratio", f"perplexity {run.id}")


def _draw_tasks(figures: EvalsFigures, run: RunRecord) -> None:
    tasks = moved_first(figures)
    changed = [task for task in tasks if moved(task)]
    if tasks:
        st.header(f"{len(changed)} of {len(tasks)} tasks moved", anchor=False)
    if changed:
        drawn = Plot(recovery_points(changed, run.report), RECOVERY)
        table(task_rows(changed), "Tasks whose score moved, losses first", f"tasks {run.id}", drawn)
    if len(tasks) > len(changed):
        with st.expander(f"{len(tasks) - len(changed)} tasks with the reference's score"):
            same = task_rows(tasks[len(changed) :])
            table(same, "Tasks whose score is the reference's", f"tasks unchanged {run.id}")


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
        draw_item(flip, run)
    csv_button(flip_rows(chosen), "the flips listed here", f"flips {run.id}")


if __name__ == "__main__":
    draw()
