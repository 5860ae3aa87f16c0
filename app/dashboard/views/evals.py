"""Evals: what a run's branch kept of the reference's scores, by task and by length, and every answer that flipped."""

import shlex

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.charts import recovery_figure, scores_figure
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.item_lines import read_lines, read_whole
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
from q36eval.app.dashboard.drawing.side_by_side import side_by_side
from q36eval.app.dashboard.escape import block, label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.answers import diff_pieces, shortened
from q36eval.app.figures.evals import (
    DIRECTIONS,
    GROUP_COLUMNS,
    PART_COLUMNS,
    PERPLEXITY_COLUMNS,
    answer_choices,
    answer_words,
    flip_rows,
    flip_words,
    flips_of,
    group_rows,
    length_points,
    length_rows,
    perplexity_rows,
    score_pairs,
    select,
    task_points,
    task_rows,
)
from q36eval.history import RunRecord
from q36eval.metrics import ALL
from q36eval.records import Answer, ItemOutcome, ProbeName
from q36eval.reports.evals_figures import EvalsFigures, effective_lengths, effective_words, recovery_asked
from q36eval.reports.text import number

FLIPS_PER_PAGE = 5
SENTENCES_SHOWN = 5
PAIR_COLUMNS = {"name": "task", "reference": "reference", "branch": "branch", "items": "items"}
POINT_COLUMNS = {"name": "task", "value": "recovery", "lower": "lower", "upper": "upper"}

# the seconds of a group are in its items, which the page does not read
SHOWN_COLUMNS = len(GROUP_COLUMNS) - 1


def draw() -> None:
    """The page."""
    page_head("Evals")
    reader = reader_or_stop()
    run = choose_run(reader, "evals_run")
    verdict_badge(run.verdict)
    figures = EvalsFigures(reader.measurements(run))
    if not figures.measured:
        _draw_empty(reader, run)
        return
    _draw_groups(figures, run)
    _draw_flips(reader, run)


def _draw_empty(reader: Reader, run: RunRecord) -> None:
    st.warning("No item of the evals was scored in this run.")
    for failure in reader.failures(run):
        st.text(line(f"{failure.probe} {failure.words}"))
    st.caption("This evaluates them:")
    st.code(line(f"q36eval evals --branch {shlex.quote(run.branch)}"), language=None)


def _draw_groups(figures: EvalsFigures, run: RunRecord) -> None:
    st.caption("The same items for reference and branch. Recovery is the branch's score over the reference's.")
    rows = [dict(zip(GROUP_COLUMNS[:SHOWN_COLUMNS], row, strict=False)) for row in group_rows(figures)]
    table(rows, "Score, recovery and flips by group", f"evals {run.id}")
    sentences = answer_words(figures)
    for sentence in sentences[:SENTENCES_SHOWN]:
        st.text(line(sentence))
    if sentences[SENTENCES_SHOWN:]:
        title = f"More about what was scored ({len(sentences) - SENTENCES_SHOWN})"
        more = address.expander(title, "scored", f"evals scored {run.id}")
        for sentence in sentences[SENTENCES_SHOWN:] if more.open else ():
            more.text(line(sentence))
    required = {} if run.report is None else recovery_asked(run.report)
    lengths = effective_lengths(figures, required)
    groups = [group.name for group in figures.groups() if group.name in lengths or task_rows(figures, group.name)]
    perplexities = perplexity_rows(figures)
    titles = [*(line(name).replace("_", " ") for name in groups), *(["Perplexity"] if perplexities else [])]
    if not titles:
        return
    tabs = address.tabs("tab", "evals_tab", [_without_markup(title) for title in titles])
    for name, tab in zip(groups, tabs, strict=False):
        with tab:
            if tab.open and name in lengths:
                _draw_lengths(figures, name, effective_words(lengths[name]), run)
            if tab.open:
                _draw_tasks(figures, name, run)
    if perplexities and tabs[-1].open:
        with tabs[-1]:
            cells = [dict(zip(PERPLEXITY_COLUMNS, row, strict=True)) for row in perplexities]
            table(cells, "Perplexity and its ratio", f"perplexity {run.id}")


def _without_markup(title: str) -> str:
    """A tab's title is read as Markdown: of a group's name it gets letters, digits and blanks only."""
    return "".join(c if c.isalnum() else " " for c in title).strip() or "group"


def _draw_tasks(figures: EvalsFigures, group: str, run: RunRecord) -> None:
    rows = task_rows(figures, group)
    if not rows:
        return
    st.header("By task", anchor=False)
    points, pairs = task_points(figures, group), score_pairs(figures, group)
    name = f"{group} by task {run.id}"
    if pairs:
        chart(scores_figure(pairs), "Score by task under reference and branch", f"scores of {name}")
        csv_button(drawn_rows(pairs, PAIR_COLUMNS), "scores by task", f"scores of {name}")
    shown = address.expander("Recovery and figures by task", "tasks", f"evals tasks {name}")
    if shown.open:
        with shown:
            if points:
                chart(recovery_figure(points), "Recovery by task with its interval", f"recovery of {name}")
                csv_button(drawn_rows(points, POINT_COLUMNS), "recovery by task", f"recovery of {name}")
            table([dict(zip(("task", *PART_COLUMNS), row, strict=True)) for row in rows], "Figures by task", name)


def _draw_lengths(figures: EvalsFigures, group: str, sentence: str, run: RunRecord) -> None:
    st.header("By length in tokens", anchor=False)
    st.text(line(sentence))
    points, name = length_points(figures, group), f"{group} by length {run.id}"
    if points:
        chart(recovery_figure(points), "Recovery by length with its interval", f"recovery of {name}")
    rows = [dict(zip(("tokens", *PART_COLUMNS), row, strict=True)) for row in length_rows(figures, group)]
    table(rows, "Figures by length", name)


def _draw_flips(reader: Reader, run: RunRecord) -> None:
    st.header("Flips", anchor=False)
    lines = read_lines(reader, run, ProbeName.EVALS, flips_only=True)
    flips = flips_of(lines.items)
    if not flips:
        st.text("No item is answered with full marks by one of the two only.")
        return
    named = st.query_params.get("item")
    if named:
        chosen = [flip for flip in flips if len(named) >= 8 and flip.item_key.startswith(named)]
        st.button("Show all flips", key="evals_all", on_click=address.forget, args=("item", "group", "direction"))
        if not chosen:
            st.warning("This run has no flip of that key:")
            st.text(line(named))
    else:
        chosen = _choose_flips(flips)
    st.caption(f"{len(chosen)} of {len(flips)} flips, lost ones first, in each the largest first.")
    shown = page_of(chosen, FLIPS_PER_PAGE, "evals_page")
    for flip in read_whole(reader, run, lines, shown, flips_only=True):
        _draw_flip(flip, run)
    csv_button(flip_rows(chosen), "the flips listed here", f"flips {run.id}")


def _choose_flips(flips: list[ItemOutcome]) -> list[ItemOutcome]:
    group, direction = st.columns(2)
    groups = [ALL, *sorted({flip.group for flip in flips})]
    directions = [ALL, *DIRECTIONS]
    unknown = address.asks_for_none({"group": ("Group", groups), "direction": ("Direction", directions)})
    chosen = select(
        flips,
        group.selectbox("Group", groups, format_func=line, **address.choice("group", "evals_group", groups)),
        direction.selectbox("Direction", directions, **address.choice("direction", "evals_direction", directions)),
    )
    return [] if unknown else chosen


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
        left, right = st.columns(2)
        if flip.expected is not None:
            left.caption("Expected")
            left.code(block(shortened(flip.expected)), language=None, wrap_lines=True)
        with right:
            name, key = f"prompt-{flip.item_key[:16]}", f"prompt {flip.group} {flip.item_key}"
            prompt = address.expander("Prompt", name, key)
        if prompt.open:
            prompt.code(block(shortened(flip.prompt or "")), language=None, wrap_lines=True)


def _said(answer: Answer) -> str:
    return answer.text if answer.text is not None else f"({answer.error or 'no text was kept'})"


if __name__ == "__main__":
    draw()
