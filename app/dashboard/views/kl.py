"""KL: how far a run's branch is from its reference, token by token: headline, breakdowns, plots, the worst tokens."""

import shlex

import streamlit as st

from q36eval.app.dashboard.drawing import address
from q36eval.app.dashboard.drawing.head import page_head
from q36eval.app.dashboard.drawing.kl_charts import binned, histogram_figure, layers_figure, marks_of, points_figure
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
from q36eval.app.dashboard.escape import block, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.figures.kl import (
    GROUPINGS,
    KLFigures,
    attribution_of,
    margins_by_group,
    select_worst,
    worst_rows,
)
from q36eval.history import RunRecord
from q36eval.metrics import ALL
from q36eval.token_files import WorstToken

GROUP_COLUMNS = {
    "tokens": "tokens",
    "kl": "mean KL",
    "kl_interval": "95 % interval",
    "p99": "99 % of tokens below",
    "top1": "same likeliest token",
    "perplexity_ratio": "perplexity ratio",
}
TOKENS_PER_PAGE = 8


def draw() -> None:
    """The page."""
    page_head("KL")
    reader = reader_or_stop()
    run = choose_run(reader, "kl_run")
    verdict_badge(run.verdict)
    figures = KLFigures(reader.measurements(run))
    if not figures.measured:
        _draw_empty(reader, run)
        return
    _draw_headline(figures, run)
    _draw_histogram(reader, run, figures)
    _draw_groupings(figures, run)
    _draw_blame(reader, run)
    _draw_worst(reader.worst_tokens(run), run)


def _draw_empty(reader: Reader, run: RunRecord) -> None:
    st.warning("No token was scored in this run.")
    for failure in reader.failures(run):
        st.text(line(f"{failure.probe} {failure.words}"))
    st.caption("This scores the branch's tokens against the reference's:")
    st.code(line(f"q36eval kl --branch {shlex.quote(run.branch)}"), language=None)


def _draw_headline(figures: KLFigures, run: RunRecord) -> None:
    st.caption("Divergence of the branch's next-token distribution from the reference's, in nats per token.")
    figures_shown = figures.headline_words()
    for column, (name, value, beside) in zip(st.columns(max(1, len(figures_shown))), figures_shown, strict=False):
        with column.container(border=True):
            st.metric(name, value)
            st.text(line(beside))
    st.text(line(figures.non_finite()))
    rows = [
        {"figure": row.name.strip(), "value": row.value, "95 % interval": row.interval, "tokens": row.tokens}
        for row in figures.headline()
    ]
    shown = address.expander("All figures over all tokens", "figures", f"kl figures open {run.id}")
    if shown.open:
        with shown:
            table(rows, "Headline figures over all tokens", f"kl {run.id}")


def _draw_histogram(reader: Reader, run: RunRecord, figures: KLFigures) -> None:
    st.header("Tokens by their KL", anchor=False)
    divergences = reader.divergences(run)
    if divergences is None:
        st.text("The run's tokens are not here, so how they spread cannot be drawn.")
        return
    mean = figures.get("kl_divergence")
    margin = margins_by_group(run.report, "slice").get(ALL)
    marks = marks_of(None if mean is None else mean.value, figures.floor(), margin)
    alt = "Histogram of the tokens' KL, both axes logarithmic"
    chart(histogram_figure(divergences, marks), alt, f"kl histogram {run.id}")
    st.caption("The floor is what the reference diverges from itself by; the margin is the policy's, and for the mean.")
    edges, counts = binned(divergences)
    bars = zip(edges[:-1], edges[1:], counts, strict=True)
    rows = [{"from, nats": repr(float(a)), "to": repr(float(b)), "tokens": str(int(n))} for a, b, n in bars]
    csv_button(rows, "how many tokens lie in each bar", f"kl histogram bars {run.id}")
    shown = address.expander("Every token's figures", "tokens", f"kl tokens open {run.id}")
    if shown.open:
        shown.code(str(reader.tokens_file(run)), language=None)


def _draw_groupings(figures: KLFigures, run: RunRecord) -> None:
    # a group that holds everything was in the headline
    shown = {title: grouping for grouping, title in GROUPINGS.items() if len(figures.rows(grouping)) >= 2}
    if not shown:
        return
    st.header("Where it diverges", anchor=False)
    tabs = address.tabs("by", "kl_by", [f"By {title}" for title in shown], list(shown.values()))
    for (title, grouping), tab in zip(shown.items(), tabs, strict=True):
        if tab.open:
            with tab:
                _draw_grouping(figures, grouping, title, run)


def _draw_grouping(figures: KLFigures, grouping: str, title: str, run: RunRecord) -> None:
    points = figures.points(grouping)
    against = {"margin": margins_by_group(run.report, grouping), "noise floor": figures.floors(grouping)}
    figure = points_figure(points, title, line=grouping == "position", held_against=against)
    chart(figure, f"Mean KL with its interval by {title}", f"kl by {title} {run.id}")
    rows = figures.rows(grouping)
    cells = [{title: row.name} | {words: getattr(row, field) for field, words in GROUP_COLUMNS.items()} for row in rows]
    table(cells, f"Figures by {title}", f"kl figures by {title} {run.id}")


def _draw_blame(reader: Reader, run: RunRecord) -> None:
    blamed = attribution_of(reader.history.series_runs(run.branch, run.family))
    st.header("Which tensors cost it", anchor=False)
    if blamed is None:
        st.text("No attribution of this branch yet. This says which classes of tensors and which layers cost the KL:")
        st.code(line(f"q36eval attribute --branch {shlex.quote(run.branch)}"), language=None)
        return
    st.text(line(f"From attribution {blamed.id} of this branch, {blamed.started:%Y-%m-%d %H:%M} UTC."))
    figures = KLFigures(reader.measurements(reader.run(blamed.id)))
    for what, series in (("class of tensors", figures.classes()), ("layers", figures.layers())):
        if series:
            chart(layers_figure(series, what), f"KL by {what} with its interval", f"kl attributed by {what} {run.id}")
            columns = {"name": what, "mean": "KL, nats/token", "lower": "lower", "upper": "upper", "tokens": "tokens"}
            rows = [{"series": name} | row for name, of in series.items() for row in drawn_rows(of, columns)]
            csv_button(rows, f"KL by {what}", f"kl attribution by {what} {run.id}")


def _draw_worst(worst: list[WorstToken], run: RunRecord) -> None:
    if not worst:
        return
    st.header(f"The {len(worst)} worst tokens", anchor=False)
    of, kind = st.columns(2)
    slices, kinds = ([ALL, *sorted({getattr(token, field) for token in worst})] for field in ("slice", "kind"))
    unknown = address.asks_for_none({"slice": ("Slice", slices), "kind": ("Kind of token", kinds)})
    chosen_slice = of.selectbox("Slice", slices, format_func=line, **address.choice("slice", "kl_slice", slices))
    kept = address.choice("kind", "kl_kind", kinds)
    chosen = select_worst(worst, chosen_slice, kind.selectbox("Kind of token", kinds, format_func=line, **kept))
    chosen = [] if unknown else chosen
    st.caption(f"{len(chosen)} of {len(worst)}, the worst first. ⟦ ⟧ marks the token that was predicted.")
    for token in page_of(chosen, TOKENS_PER_PAGE, "kl_page"):
        _draw_token(token)
    csv_button(worst_rows(chosen), "these tokens", f"worst tokens {run.id}")


def _draw_token(token: WorstToken) -> None:
    with st.container(border=True):
        st.text(line(f"{token.forward_kl:.3g} nats · {token.document}, token {token.index} · {token.kind}"))
        st.code(block(f"{token.before}⟦{token.text}⟧{token.after}"), language=None, wrap_lines=True)
        st.text(
            line(
                f"log-probability {token.reference_logprob:.3g} under the reference, {token.branch_logprob:.3g} "
                f"under the branch; {token.top1_rank} tokens overtook the reference's likeliest; "
                f"reference's entropy {token.reference_entropy:.3g} nats"
            )
        )


if __name__ == "__main__":
    draw()
