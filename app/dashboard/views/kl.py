"""KL: how far a run's branch is from its reference, token by token: headline, breakdowns, plots, the worst tokens."""

from dataclasses import replace

import streamlit as st

from q36eval.app.dashboard.drawing.charts import SMALLEST_DRAWN, histogram_figure
from q36eval.app.dashboard.drawing.parts import (
    chart,
    choice,
    copy_box,
    csv_button,
    nothing_measured,
    page_of,
    probe_page,
    table,
)
from q36eval.app.dashboard.drawing.tables import Plot
from q36eval.app.dashboard.escape import block, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.kl import (
    FEW_TOKENS,
    GROUPINGS,
    KLFigures,
    attribution_of,
    by_context,
    likely_words,
    select_worst,
    worst_rows,
)
from q36eval.app.standing import names
from q36eval.history import RunRecord
from q36eval.reports.next_step import branch_option
from q36eval.reports.plots import KL_UNIT, Row, decades, kl_rows
from q36eval.reports.text import number
from q36eval.token_files import WorstToken

CONTEXTS_PER_PAGE = 10


def draw() -> None:
    """The page."""
    reader, run = probe_page("KL")
    figures = KLFigures(reader.measurements(run))
    if not figures.measured:
        nothing_measured("No token was scored in this run.", reader, run, "kl")
        return
    st.caption("Divergence of the branch's next-token distribution from the reference's, in nats per token.")
    table(figures.headline(), "Headline figures over all tokens", f"kl {run.id}")
    st.text(line(figures.non_finite()))
    _draw_histogram(reader, run, figures)
    _draw_groupings(reader, figures, run)
    _draw_attribution(reader, run)
    _draw_worst(reader.worst_tokens(run), run)


def _draw_histogram(reader: Reader, run: RunRecord, figures: KLFigures) -> None:
    st.header("Tokens by their KL", anchor=False)
    divergences = reader.divergences(run)
    if divergences is None:
        st.text("The run's tokens are not here, so how they spread cannot be drawn.")
        return
    whole, mean = kl_rows(run.report, reader.measurements(run)).get("all"), figures.get("kl_divergence")
    marks = {
        "mean": None if mean is None else mean.value,
        "noise floor": None if whole is None else whole.floor,
        "margin": None if whole is None else whole.limit,
    }
    alt = "Histogram of the tokens' KL, both axes logarithmic"
    chart(histogram_figure(divergences, marks), alt, f"kl histogram {run.id}")
    st.caption(
        "The floor is what the reference diverges from itself by; the margin is the policy's, and for the mean. The "
        f"first bar holds everything up to {SMALLEST_DRAWN:g}, zero included."
    )
    st.caption("Every token's figures are in this file:")
    copy_box(str(reader.tokens_file(run)))


def _draw_groupings(reader: Reader, figures: KLFigures, run: RunRecord) -> None:
    # a group that holds everything was in the headline
    shown = {grouping: title for grouping, title in GROUPINGS.items() if len(figures.groups(grouping)) >= 2}
    if not shown:
        return
    st.header("Where it diverges", anchor=False)
    intervals = kl_rows(run.report, reader.measurements(run))
    for (grouping, title), tab in zip(shown.items(), st.tabs([f"By {title}" for title in shown.values()]), strict=True):
        names = figures.worst_first(grouping)
        points, few = [intervals.get(name) for name in names], figures.few(names)
        known = [point for point in points if point is not None]
        axis = decades([replace(p, lower=p.value, upper=p.value) if p.name in few else p for p in known], KL_UNIT)
        words = f"fewer than {FEW_TOKENS} tokens, interval not drawn"
        rows = [figures.row(name) | _marks(intervals.get(name)) for name in names]
        with tab:
            plot = Plot(points, axis, few=few, few_words=words)
            table(rows, f"Mean KL with its interval by {title}", f"kl by {title} {run.id}", plot)


def _marks(point: Row | None) -> dict[str, str]:
    """Margin and noise floor of a row."""
    return {} if point is None else {"margin": number(point.limit), "noise floor": number(point.floor)}


def _draw_attribution(reader: Reader, run: RunRecord) -> None:
    found = attribution_of(reader.history.series_runs(run.branch, run.family))
    st.header("Which tensors cost it", anchor=False)
    if found is None:
        st.text("No attribution of this branch yet. This measures which classes of tensors and layers cost the KL:")
        copy_box(f"q36eval attribute {branch_option(run)}")
        return
    st.text(line(f"From attribution {found.id} of this branch, {found.started:%Y-%m-%d %H:%M} UTC."))
    rows = KLFigures(reader.measurements(reader.history.get_run(found.id))).attributed()
    if rows:
        alt = "KL of each class of tensors and of each run of layers, quantized alone and restored"
        cells = [{"part": row.name, "KL": row.words} for row in rows]
        table(cells, alt, f"kl by part {run.id}", Plot(rows, decades(rows, KL_UNIT)))


def _draw_worst(worst: list[WorstToken], run: RunRecord) -> None:
    if not worst:
        return
    st.header(f"The {len(worst)} worst tokens", anchor=False)
    with st.container(horizontal=True):
        of = choice("Slice", "slice", sorted({token.slice for token in worst}))
        chosen = select_worst(worst, of, choice("Kind of token", "kind", sorted({token.kind for token in worst})))
    st.caption(
        f"{len(chosen)} of {len(worst)}, the worst first, equal ones together. ⟦ ⟧ marks the token that was predicted."
    )
    for tokens in page_of(by_context(chosen), CONTEXTS_PER_PAGE, "kl_page"):
        _draw_tokens(tokens)
    csv_button(worst_rows(chosen), "these tokens", f"worst tokens {run.id}")


def _draw_tokens(tokens: list[WorstToken]) -> None:
    """One context, with the worst of the tokens that stand there."""
    first, documents = tokens[0], list(dict.fromkeys(token.document for token in tokens))
    where = documents[0] if len(documents) == 1 else f"in {len(documents)} documents: {names(documents)}"
    nats = " to ".join(dict.fromkeys(f"{token.forward_kl:.3g}" for token in (first, tokens[-1])))
    with st.container(border=True):
        st.text(line(f"{nats} nats · {where} · token {first.index} · {first.kind}"))
        st.code(block(f"{first.before}⟦{first.text}⟧{first.after}"), language=None, wrap_lines=True)
        st.text(line(likely_words(first)))


if __name__ == "__main__":
    draw()
