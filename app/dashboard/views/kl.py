"""KL: how far a run's branch is from its reference, token by token: headline, breakdowns, plots, the worst tokens."""

import streamlit as st

from app.dashboard.inert import block, line
from app.dashboard.parts import RUNS_OFFERED, choose_run, plain_table, reader_or_stop
from app.dashboard.reading import Reader
from app.kl_figures import histogram_figure, layers_figure, points_figure
from app.kl_model import GROUPINGS, KLFigures, attribution_of
from q36eval.history import RunRecord
from q36eval.token_files import WorstToken

GROUP_COLUMNS = {
    "tokens": "tokens",
    "kl": "mean KL",
    "kl_interval": "95 % interval",
    "p99": "99 % of tokens below",
    "top1": "same likeliest token",
    "perplexity_ratio": "perplexity ratio",
    "delta_p_rms": "Δp RMS",
}


def draw() -> None:
    """The page."""
    st.title("KL")
    reader = reader_or_stop()
    run = choose_run(reader, "kl_run")
    figures = KLFigures(reader.measurements(run))
    if not figures.measured:
        st.warning("No token was scored in this run.")
        for failure in reader.failures(run):
            st.text(line(f"{failure.probe} {failure.kind}: {failure.reason}"))
        return
    st.caption("Divergence of the branch's next-token distribution from the reference's, in nats per token.")
    rows = [
        {"figure": row.name.strip(), "value": row.value, "95 % interval": row.interval, "tokens": row.tokens}
        for row in figures.headline()
    ]
    plain_table(rows, "Headline figures over all tokens")
    st.text(line(figures.non_finite()))
    _draw_histogram(reader, run, figures)
    for grouping, title in GROUPINGS.items():
        _draw_grouping(figures, grouping, title)
    _draw_layers(reader, run)
    _draw_worst(reader.worst_tokens(run))


def _draw_histogram(reader: Reader, run: RunRecord, figures: KLFigures) -> None:
    st.subheader("Tokens by their KL", anchor=False)
    divergences = reader.divergences(run)
    if divergences is None:
        st.text("The run's tokens are not here, so how they spread cannot be drawn.")
        return
    mean = figures.get("kl_divergence")
    figure = histogram_figure(divergences, None if mean is None else mean.value)
    st.plotly_chart(figure, key="kl histogram", alt="Histogram of the tokens' KL, both axes logarithmic")
    st.caption("Every token's figures")
    st.code(str(reader.tokens_file(run)), language=None)


def _draw_grouping(figures: KLFigures, grouping: str, title: str) -> None:
    rows = figures.rows(grouping)
    if len(rows) < 2:  # a group that holds everything was in the headline
        return
    st.subheader(f"By {title}", anchor=False)
    figure = points_figure(figures.points(grouping), title, line=grouping in ("position", "entropy"))
    st.plotly_chart(figure, key=f"kl {grouping}", alt=f"Mean KL with its interval by {title}")
    cells = [{title: row.name} | {words: getattr(row, field) for field, words in GROUP_COLUMNS.items()} for row in rows]
    plain_table(cells, f"Figures by {title}")


def _draw_layers(reader: Reader, run: RunRecord) -> None:
    blamed = attribution_of(run, reader.runs_of(run.family, run.branch, RUNS_OFFERED))
    layers = {} if blamed is None else KLFigures(reader.measurements(blamed)).layers()
    if blamed is None or not layers:
        return
    st.subheader("By layer", anchor=False)
    st.text(line(f"From attribution {blamed.id} of this branch."))
    st.plotly_chart(layers_figure(layers), key="kl layers", alt="KL by layer with its interval")


def _draw_worst(worst: list[WorstToken]) -> None:
    if not worst:
        return
    st.subheader(f"The {len(worst)} worst tokens", anchor=False)
    for token in worst:
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
