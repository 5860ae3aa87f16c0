"""Compare: two runs, of one branch or of two, criterion by criterion, and the items that flipped between them."""

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.head import name_tab, page_head
from q36eval.app.dashboard.drawing.parts import choose_run, named_branch, newest_runs, page_of, reader_or_stop, table
from q36eval.app.dashboard.inert import block, line
from q36eval.app.dashboard.look import look_of
from q36eval.app.dashboard.models.compare import (
    CHOICES,
    criterion_rows,
    default_pair,
    differing_rows,
    flip_words,
    headline,
    measurement_rows,
    select,
)
from q36eval.app.dashboard.reading import Reader
from q36eval.history import RunRecord
from q36eval.history.comparing import BetweenRuns, Comparison
from q36eval.records import Answer

FLIPS_PER_PAGE = 5
WAYS = {"lost": "▼ LOST: right in A, not in B", "gained": "▲ GAINED: right in B, not in A"}


def draw() -> None:
    """The page."""
    page_head("Compare")
    reader = reader_or_stop()
    first, second = _default(reader)
    with st.container(border=True):
        a = choose_run(reader, "compare_a", "a", "A: ", first)
        b = choose_run(reader, "compare_b", "b", "B: ", second)
        st.button("Swap A and B", on_click=_swap, args=(a.id, b.id), icon=":material/swap_vert:", key="compare_swap")
    name_tab(f"{a.branch} {a.id}", f"{b.branch} {b.id}")
    comparison = reader.comparison(a, b)
    _draw_verdicts(reader, a, b)
    st.text(headline(comparison, a, b))
    _draw_differing(comparison)
    _draw_criteria(comparison)
    _draw_flips(comparison)


def _default(reader: Reader) -> tuple[str, str]:
    """Of the branch that the address names, else of the one with the newest run."""
    branches = [(of.family, of.branch) for of in reader.branches()]
    key = named_branch(branches) or branches[0]
    runs = newest_runs(reader, key)
    blessed = next((one.run_id for one in reader.blessings(*key)), None)
    first, second = default_pair(runs, blessed)
    if first == second:  # the only run of its branch: beside it stands the newest verdict of another one
        others = [of for of in reader.branches() if of.judged is not None and of.judged.id != second]
        same = [of for of in others if of.family == runs[0].family]
        first = next((of.judged.id for of in (same or others) if of.judged is not None), first)
    return first, second


def _swap(a: str, b: str) -> None:
    st.query_params["a"], st.query_params["b"] = b, a


def _draw_verdicts(reader: Reader, a: RunRecord, b: RunRecord) -> None:
    for column, name, run in zip(st.columns(2), "AB", (a, b), strict=True):
        with column.container(border=True):
            look = look_of(run.verdict)
            unverified = reader.is_unverified(run.id)  # then nobody knows what it was
            st.badge(
                f"{name}: {'! UNVERIFIED' if unverified else look.label}", color="red" if unverified else look.colour
            )
            st.text(line(f"{run.branch} of family {run.family}, {run.started:%Y-%m-%d %H:%M} UTC"))
            for lane in () if run.report is None else run.report.lanes:
                st.text(f"{lane.lane}: {look_of(lane.verdict).symbol} {lane.headline}")
            st.page_link("views/run.py", label=f"Run {name}", icon=":material/rule:", query_params={"run": run.id})


def _draw_differing(comparison: Comparison) -> None:
    rows = differing_rows(comparison)
    apart = sorted(set(comparison.apart.values()))
    if apart:
        st.warning("Some figures are of something else in the two runs:")
    for why in apart:
        st.text(line(why))
    if not rows:
        st.text("Both runs measured the same deployment in the same way.")
        return
    with st.expander(f"What differs in what was measured, and with what: {len(rows)} fields", expanded=len(rows) <= 8):
        table(rows, "Fields that differ between the two runs", "differing")


def _draw_criteria(comparison: Comparison) -> None:
    if comparison.criteria:
        st.subheader("Criteria", anchor=False)
        which = st.segmented_control("Show", CHOICES, required=True, **address.choice("show", "compare_which", CHOICES))
        rows = criterion_rows(select(comparison.criteria, which))
        if rows:
            table(rows, "Criteria of both runs with their paired difference", "compared criteria")
        else:
            st.text("No criterion is like this.")
        st.caption(
            "Intervals are of B against A over the items of both runs. Each holds by itself, so of many some miss."
        )
    if comparison.measurements:
        st.subheader("Figures", anchor=False)
        table(measurement_rows(comparison), "Figures of both runs with their paired difference", "compared figures")


def _draw_flips(comparison: Comparison) -> None:
    st.subheader("Flips between the two", anchor=False)
    for counts in comparison.flips:
        st.text(flip_words(counts))
    if not comparison.flips:
        st.text("No items to compare: the runs evaluated none, or different ones.")
    for flip in page_of(comparison.flipped, FLIPS_PER_PAGE, "compare_flips"):
        _draw_flip(flip)


def _draw_flip(flip: BetweenRuns) -> None:
    with st.container(border=True):
        st.badge(WAYS[flip.way], color="red" if flip.way == "lost" else "green")
        st.text(line(f"{flip.probe} · {flip.group} · {flip.cluster}"))
        if flip.prompt is not None:
            with st.expander("Prompt and expected answer"):
                st.code(block(flip.prompt), language=None, wrap_lines=True)
                st.code(block(flip.expected or "–"), language=None, wrap_lines=True)
        for column, name, answer in zip(st.columns(2), "AB", (flip.a, flip.b), strict=True):
            with column:
                st.caption(f"{name} answered, score {_score(answer)}")
                st.code(block(answer.text or answer.error or "–"), language=None, wrap_lines=True)


def _score(answer: Answer) -> str:
    return "none" if answer.score is None else f"{answer.score:g}"


if __name__ == "__main__":
    draw()
