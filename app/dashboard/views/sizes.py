"""KL and size: the branch of a family that is worth its size, among comparable ones."""

import streamlit as st

from q36eval.app.dashboard.drawing.parts import reader_or_stop, table
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.verdict_style import AXES, look_of
from q36eval.app.figures.sizes import Sizes, family_sizes
from q36eval.history import RunRecord
from q36eval.reports.size_plot import TITLES, SizedBranch, front, size_plot
from q36eval.reports.text import number


def draw() -> None:
    """The page."""
    reader = reader_or_stop("KL and size")
    judged = [of.judged for of in reader.history.branches() if of.judged is not None]
    if not judged:
        st.info("No gate has judged a branch yet.")
        return
    families = sorted({one.family for one in judged})
    family = st.selectbox("Family", families, format_func=line, key="family", bind="query-params")
    of_family = sorted((one for one in judged if one.family == family), key=lambda one: one.started, reverse=True)
    run, sizes = _first_drawn(reader, [one.id for one in of_family])
    if sizes.branches:
        _draw_plots(sizes.branches, run)
    else:
        st.info("No gate of this family both measured KL and recorded the size of the weights. A new gate does.")
    if sizes.left_out:
        st.text("Left out:")
    for name, why in sizes.left_out.items():
        st.text(line(f"{name}: {why}"))


def _first_drawn(reader: Reader, runs: list[str]) -> tuple[RunRecord, Sizes]:
    """The first of these runs with which a branch compares, and the branches that do; the last where none does."""
    for one in runs:
        run = reader.history.get_run(one)
        sizes = family_sizes(reader.history, run)
        if sizes.branches:
            break
    return run, sizes


def _draw_plots(branches: tuple[SizedBranch, ...], run: RunRecord) -> None:
    policy = "" if run.report is None else run.report.policy
    st.caption(
        f"By the newest gates that compare (policy {label(policy)}, the same texts, reference and engine). Lower and "
        "further left is better. The dashed line joins the branches that no other one beats in both: names in bold."
    )
    ink = AXES.get(st.context.theme.type or "light", AXES["light"])
    for of, column in zip(TITLES, st.columns(len(TITLES)), strict=True):
        column.image(str(size_plot(branches, of, ink)), width="stretch", alt=f"KL against {TITLES[of]}")
    best = front(branches, "GiB")
    rows = [
        {
            "branch": each.name,
            "verdict": look_of(each.verdict).label,
            "KL": f"{number(each.kl)} [{number(each.lower)}, {number(each.upper)}]",
            "GiB": f"{each.size('GiB'):.3g}",
            "bits per weight": f"{each.size('bits'):.2f}",
            "best for its size": "yes" if each in best else "no",
        }
        for each in sorted(branches, key=lambda each: each.stored_bytes)
    ]
    table(rows, "Branches by size", f"sizes {run.family}")


if __name__ == "__main__":
    draw()
