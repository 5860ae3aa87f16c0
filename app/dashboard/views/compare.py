"""Compare: two runs, of one branch or of two, criterion by criterion, and the items that flipped between them."""

import streamlit as st

from q36eval.app.dashboard.drawing.parts import (
    asked_run,
    choose_run,
    name_tab,
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
    changed,
    criterion_rows,
    default_pair,
    differing_rows,
    flip_words,
    headline,
    measurement_rows,
    side_name,
    unlike,
    unpaired,
)
from q36eval.app.dashboard.verdict_style import look_of
from q36eval.app.figures.answers import diff_pieces
from q36eval.history import RunRecord
from q36eval.history.run_comparison import BetweenRuns, Comparison
from q36eval.records import Answer

FLIPS_PER_PAGE = 5
WAYS = {"lost": "▼ LOST: right in A, not in B", "gained": "▲ GAINED: right in B, not in A"}


MOST_LOOKED_AT = 50  # the number of branches searched for two gates if none has two itself


def draw() -> None:
    """The page."""
    reader = reader_or_stop("Compare")
    _fill_address(reader)
    a, b = (choose_run(reader, f"compare_{side}", side, f"{side.upper()}: ") for side in "ab")
    name_tab(f"{a.branch} {a.id}", f"{b.branch} {b.id}")
    for column, name, run in zip(st.columns(2), "AB", (a, b), strict=True):
        look = look_of(run.verdict)
        lanes = () if run.report is None else run.report.lanes
        said = " · ".join(f"{lane.lane} {look_of(lane.verdict).symbol} {lane.headline}" for lane in lanes)
        column.badge(f"{name}: {look.label}", color=look.colour)
        column.page_link("views/run.py", label=label(side_name(name, run)), query_params={"run": run.id})
        column.caption(label(said or "no verdict"))
    why = unlike(a, b)
    if why is not None:
        st.info(why)
        return
    comparison = reader.comparison(a, b)
    st.text(headline(comparison))
    _draw_differing(comparison)
    _draw_criteria(comparison)
    _draw_flips(comparison, a, b)


def _fill_address(reader: Reader) -> None:
    """Without runs in the address, or two looked at before: a pair of the branch that it names, else of the first that
    has one."""
    asked = [asked_run(reader, side) for side in "ab"]
    keys = [(of.family, of.branch) for of in reader.history.branches()]
    named = named_branch(keys)
    if any(asked) or (named is None and "last_a" in st.session_state):
        return
    for key in keys if named is None else [named]:
        blessed = next((one.run_id for one in reader.history.blessings(key[1], key[0])), None)
        runs = newest_runs(reader, key)
        pair = default_pair(runs, blessed) or ((runs[0].id, runs[0].id) if named else None)
        if pair is not None:
            st.query_params["a"], st.query_params["b"] = pair
            return
    gates = [
        run for key in keys[:MOST_LOOKED_AT] for run in newest_runs(reader, key)[:1] if run.is_gate and run.verdict
    ]
    gates.sort(key=lambda run: run.started, reverse=True)
    for b in gates:  # no branch has two gates: the newest of two branches of one family
        a = next((run for run in gates if run.family == b.family and run.id != b.id), None)
        if a is not None:
            st.query_params["a"], st.query_params["b"] = a.id, b.id
            return


def _draw_differing(comparison: Comparison) -> None:
    apart = sorted(set(comparison.apart.values()))
    if apart:
        st.warning("Some figures are of something else in the two runs:")
    for why in apart:
        st.text(line(why))
    rows = differing_rows(comparison)
    if rows:
        with st.expander(f"Fields of the deployment and of the measurement that differ ({len(rows)})"):
            table(rows, "Fields that differ between the two runs", "differing")
    else:
        st.text("Both runs measured the same deployment in the same way.")


def _draw_criteria(comparison: Comparison) -> None:
    if comparison.criteria:
        st.header("Criteria", anchor=False)
        moved = [one for one in comparison.criteria if changed(one)]
        whole = st.toggle(f"Show the {len(comparison.criteria) - len(moved)} unchanged criteria too", key="unchanged")
        if moved or whole:
            rows = criterion_rows(comparison.criteria if whole else moved)
            table(rows, "Criteria of both runs with their paired difference", "compared criteria")
        else:
            st.text("No criterion changed.")
        st.caption("B against A over the items of both runs. Intervals are not adjusted for multiple comparisons.")
    for why in unpaired(comparison):
        st.text(line(why))
    if comparison.measurements:
        st.header("Figures", anchor=False)
        table(measurement_rows(comparison), "Figures of both runs with their paired difference", "compared figures")


def _draw_flips(comparison: Comparison, a: RunRecord, b: RunRecord) -> None:
    st.header("Flips between the two", anchor=False)
    for counts in comparison.flips:
        st.text(flip_words(counts))
    if not comparison.flips:
        st.text("No items to compare: the runs evaluated none, or different ones.")
    for flip in page_of(comparison.flipped, FLIPS_PER_PAGE, "compare_flips"):
        _draw_flip(flip, (side_name("A", a), side_name("B", b)))


def _draw_flip(flip: BetweenRuns, names: tuple[str, str]) -> None:
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge(WAYS[flip.way], color="red" if flip.way == "lost" else "green")
            st.text(line(f"{flip.probe} · {flip.group} · {flip.cluster}"), width="content")
        if flip.prompt is not None:
            with st.expander("Prompt and expected answer"):
                st.code(block(flip.prompt), language=None, wrap_lines=True)
                st.code(block(flip.expected or "–"), language=None, wrap_lines=True)
        sides = (flip.a, flip.b)
        titles = tuple(f"{name}: {_score(answer)}" for name, answer in zip(names, sides, strict=True))
        texts = tuple(answer.text or answer.error or "–" for answer in sides)
        side_by_side((titles[0], titles[1]), diff_pieces(*texts))


def _score(answer: Answer) -> str:
    return "not scored" if answer.score is None else {1.0: "right", 0.0: "wrong"}.get(answer.score, f"{answer.score:g}")


if __name__ == "__main__":
    draw()
