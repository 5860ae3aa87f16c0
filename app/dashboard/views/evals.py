"""Evals: what a run's branch kept of the reference's scores, by task and by length, and every answer that flipped."""

import streamlit as st

from app.dashboard.charts import recovery_figure
from app.dashboard.evals_model import ALL, DIRECTIONS, length_points, select, task_points
from app.dashboard.inert import block, line
from app.dashboard.parts import choose_run, page_of, plain_table, reader_or_stop
from app.evals_model import (
    GROUP_COLUMNS,
    PART_COLUMNS,
    PERPLEXITY_COLUMNS,
    Flip,
    flip_words,
    flips_of,
    group_rows,
    length_rows,
    macro_words,
    perplexity_rows,
    shortened,
    task_rows,
)
from q36eval.records import Answer
from q36eval.reports._text import number
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, recovery_asked

FLIPS_PER_PAGE = 10
SHOWN_COLUMNS = len(GROUP_COLUMNS) - 1
"""Seconds are in the items, which the page does not read."""


def draw() -> None:
    """The page."""
    st.title("Evals")
    reader = reader_or_stop()
    run = choose_run(reader, "evals_run")
    figures = EvalsFigures(reader.measurements(run))
    if not figures.measured:
        st.warning("No item of the evals was scored in this run.")
        for failure in reader.failures(run):
            st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
        return
    st.caption("The same items asked of reference and branch. Recovery is the branch's score over the reference's.")
    rows = [dict(zip(GROUP_COLUMNS[:SHOWN_COLUMNS], row, strict=False)) for row in group_rows(figures)]
    plain_table(rows, "Score, recovery and flips by group")
    for sentence in macro_words(figures):
        st.text(line(sentence))
    asked = {} if run.report is None else recovery_asked(run.report)
    lengths = effective_lengths(figures, asked)
    for group in figures.groups():
        _draw_tasks(figures, group.name)
        if group.name in lengths:
            _draw_lengths(figures, group.name, effective_words(lengths[group.name]))
    _draw_perplexity(figures)
    _draw_flips(flips_of(reader.eval_flips(run)))


def _draw_tasks(figures: EvalsFigures, group: str) -> None:
    rows = task_rows(figures, group)
    if not rows:
        return
    st.subheader("By task", anchor=False)
    st.text(line(group))
    points = task_points(figures, group)
    if points:
        st.plotly_chart(recovery_figure(points), key=f"evals tasks {group}", alt="Recovery by task with its interval")
    plain_table([dict(zip(("task", *PART_COLUMNS), row, strict=True)) for row in rows], "Figures by task")


def _draw_lengths(figures: EvalsFigures, group: str, sentence: str) -> None:
    st.subheader("By length in tokens", anchor=False)
    st.text(line(group))
    points = length_points(figures, group)
    if points:
        st.plotly_chart(
            recovery_figure(points), key=f"evals lengths {group}", alt="Recovery by length with its interval"
        )
    rows = [dict(zip(("tokens", *PART_COLUMNS), row, strict=True)) for row in length_rows(figures, group)]
    plain_table(rows, "Figures by length")
    st.text(line(sentence))


def _draw_perplexity(figures: EvalsFigures) -> None:
    rows = perplexity_rows(figures)
    if rows:
        st.subheader("Perplexity", anchor=False)
        plain_table([dict(zip(PERPLEXITY_COLUMNS, row, strict=True)) for row in rows], "Perplexity and its ratio")


def _draw_flips(flips: list[Flip]) -> None:
    st.subheader("Flips", anchor=False)
    if not flips:
        st.text("No item is answered with full marks by one of the two only.")
        return
    group, direction = st.columns(2)
    groups = [ALL, *sorted({flip.group for flip in flips})]
    found = select(
        flips,
        group.selectbox("Group", groups, key="evals_group", format_func=line),
        direction.selectbox("Direction", [ALL, *DIRECTIONS], key="evals_direction"),
    )
    st.caption(f"{len(found)} of {len(flips)} flips, lost ones first.")
    for flip in page_of(found, FLIPS_PER_PAGE, "evals_page"):
        _draw_flip(flip)


def _draw_flip(flip: Flip) -> None:
    with st.container(border=True):
        lost = flip.direction == "regression"
        st.badge("✗ LOST" if lost else "↑ GAINED", color="red" if lost else "blue")
        st.text(line(flip_words(flip)))
        left, right = st.columns(2)
        with left:
            _draw_answer("Reference", flip.reference)
        with right:
            _draw_answer("Branch", flip.branch)
        if flip.expected is not None:
            st.caption("Expected")
            st.code(block(flip.expected), language=None, wrap_lines=True)
        with st.expander("Prompt"):
            st.code(block(shortened(flip.prompt)), language=None, wrap_lines=True)


def _draw_answer(side: str, answer: Answer) -> None:
    st.caption(f"{side}: score {number(answer.score)}")
    if answer.text is not None:
        st.code(block(answer.text), language=None, wrap_lines=True)
    choices = answer.detail.get("log_likelihoods")
    if isinstance(choices, dict):
        listed = ", ".join(f"{choice} {number(float(value))}" for choice, value in choices.items())
        st.text(line(f"log-likelihoods, nats: {listed}"))


if __name__ == "__main__":
    draw()
