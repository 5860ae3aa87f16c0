"""Compare: two runs, of one branch or of two, criterion by criterion, and the items that flipped between them."""

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.head import name_tab, page_head
from q36eval.app.dashboard.drawing.parts import (
    asked_run,
    choose_run,
    named_branch,
    newest_runs,
    page_of,
    reader_or_stop,
    table,
)
from q36eval.app.dashboard.drawing.side_by_side import side_by_side
from q36eval.app.dashboard.escape import block, label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.models.compare import (
    CHOICES,
    criterion_rows,
    default_pair,
    differing_rows,
    flip_words,
    headline,
    measurement_rows,
    select,
    side_name,
)
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.figures.answers import diff_pieces
from q36eval.history import RunRecord
from q36eval.history.run_comparison import BetweenRuns, Comparison
from q36eval.records import Answer

FLIPS_PER_PAGE = 5
FEW_FIELDS = 8
WAYS = {"lost": "▼ LOST: right in A, not in B", "gained": "▲ GAINED: right in B, not in A"}
EITHER = ("all", *WAYS)
STYLE = """<style>div:has(> .st-key-compare_sides) { position: sticky; top: 3.75rem; z-index: 9; }
.st-key-compare_sides { padding: .35rem .75rem; border-radius: .5rem; backdrop-filter: blur(16px) brightness(1);
  background: rgba(128, 132, 140, .14); }
@media (max-width: 700px) { .st-key-compare_sides [data-testid=stHorizontalBlock] { gap: .1rem; } }</style>"""


def draw() -> None:
    """The page."""
    page_head("Compare")
    reader = reader_or_stop()
    for side in ("a", "b"):
        asked_run(reader, side)
    first, second = _default(reader)
    with address.expander("Choose other runs", "runs", "compare_runs", icon=":material/tune:"):
        a = choose_run(reader, "compare_a", "a", "A: ", first)
        b = choose_run(reader, "compare_b", "b", "B: ", second)
    name_tab(f"{a.branch} {a.id}", f"{b.branch} {b.id}")
    _draw_sides(reader, a, b)
    comparison = reader.comparison(a, b)
    st.text(headline(comparison, a, b))
    _draw_differing(comparison)
    _draw_criteria(comparison)
    _draw_flips(comparison, a, b)


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


def _draw_sides(reader: Reader, a: RunRecord, b: RunRecord) -> None:
    """Which run is which; it stays in sight while the page is scrolled."""
    st.html(STYLE)
    with st.container(key="compare_sides"):
        left, right, swap = st.columns((5, 5, 1.4), vertical_alignment="center")
        for column, name, run in ((left, "A", a), (right, "B", b)):
            with column.container(horizontal=True, vertical_alignment="center", gap="small"):
                look = look_of(run.verdict)
                st.badge(f"{name}: {look.label}", color=look.colour)
                words = label(f"{run.branch}, {run.started:%Y-%m-%d %H:%M} UTC")
                st.page_link("views/run.py", label=words, query_params={"run": run.id}, help=f"Run {name}: {run.id}")
        swap.button("Swap", on_click=_swap, args=(a.id, b.id), icon=":material/swap_horiz:", key="compare_swap")
    for column, name, run in zip(st.columns(2), "AB", (a, b), strict=True):
        lanes = () if run.report is None else run.report.lanes
        said = " · ".join(f"{lane.lane} {look_of(lane.verdict).symbol} {lane.headline}" for lane in lanes)
        column.caption(label(f"{name}: {said or 'no verdict'} · family {run.family} · run {run.id}"))


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
    title, few = f"What differs in what was measured, and with what: {len(rows)} fields", len(rows) <= FEW_FIELDS
    shown = address.expander(title, "differing", "compare_differing", expanded=few)
    if shown.open:
        with shown:
            table(rows, "Fields that differ between the two runs", "differing")


def _draw_criteria(comparison: Comparison) -> None:
    if comparison.criteria:
        st.header("Criteria", anchor=False)
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
        st.header("Figures", anchor=False)
        table(measurement_rows(comparison), "Figures of both runs with their paired difference", "compared figures")


def _draw_flips(comparison: Comparison, a: RunRecord, b: RunRecord) -> None:
    st.header("Flips between the two", anchor=False)
    for counts in comparison.flips:
        st.text(flip_words(counts))
    if not comparison.flips:
        st.text("No items to compare: the runs evaluated none, or different ones.")
    flipped = list(comparison.flipped)
    if flipped:
        way = st.segmented_control("Flips", EITHER, required=True, **address.choice("way", "compare_way", EITHER))
        flipped = [flip for flip in flipped if way in (EITHER[0], flip.way)]
    for flip in page_of(flipped, FLIPS_PER_PAGE, "compare_flips"):
        _draw_flip(flip, (side_name("A", a), side_name("B", b)))


def _draw_flip(flip: BetweenRuns, names: tuple[str, str]) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(WAYS[flip.way], color="red" if flip.way == "lost" else "green")
            st.text(line(f"{flip.probe} · {flip.group} · {flip.cluster}"), width="content")
        if flip.prompt is not None:
            name, key = f"prompt-{flip.item_key[:16]}", f"prompt {flip.probe} {flip.group} {flip.item_key}"
            prompt = address.expander("Prompt and expected answer", name, key)
            if prompt.open:
                prompt.code(block(flip.prompt), language=None, wrap_lines=True)
                prompt.code(block(flip.expected or "–"), language=None, wrap_lines=True)
        sides = (flip.a, flip.b)
        titles = tuple(f"{name}: {_score(answer)}" for name, answer in zip(names, sides, strict=True))
        texts = tuple(answer.text or answer.error or "–" for answer in sides)
        side_by_side((titles[0], titles[1]), diff_pieces(*texts))


def _score(answer: Answer) -> str:
    return "not scored" if answer.score is None else {1.0: "right", 0.0: "wrong"}.get(answer.score, f"{answer.score:g}")


if __name__ == "__main__":
    draw()
