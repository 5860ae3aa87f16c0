"""Pieces that several pages draw."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app.dashboard.inert import line
from app.dashboard.look import look_of
from app.dashboard.reading import Reader, history_path
from q36eval.gate.report import CriterionVerdict
from q36eval.history import RunRecord
from q36eval.records import Verdict

ROWS_SHOWN_WHOLE = 40
"""A longer table scrolls within itself."""

FIRST_COMMAND = "q36eval gate --branch fp8-head"


def reader_or_stop() -> Reader:
    """The history to read; where it holds no run, what to do about that, and the page ends there."""
    reader = Reader(history_path())
    if not reader.runs():
        st.info("No run yet. A gate run measures a branch and decides; this one judges a branch of the sandbox:")
        st.code(FIRST_COMMAND, language=None)
        st.caption("History is read from")
        st.code(str(reader.path), language=None)
        st.stop()
    return reader


def verdict_badge(verdict: Verdict | CriterionVerdict | None, suffix: str = "") -> None:
    """Symbol, word and colour. `suffix` is our own words, never a model's."""
    look = look_of(verdict)
    st.badge(f"{look.label}{suffix}", color=look.colour)


def verdict_heading(verdict: Verdict | CriterionVerdict | None, suffix: str = "") -> None:
    """As `verdict_badge`, for what the whole page is about."""
    look = look_of(verdict)
    st.header(f":{look.colour}[{look.label}]{suffix}", anchor=False)


def run_label(run: RunRecord) -> str:
    """A run as a line to choose from."""
    verdict = look_of(run.verdict).label if run.verdict is not None else str(run.state)
    return line(f"{run.started:%Y-%m-%d %H:%M} UTC · {run.branch} · {verdict} · {run.family} · {run.id}")


def choose_run(runs: Sequence[RunRecord], key: str) -> RunRecord:
    """A run chosen by `?run=ID` (a unique prefix will do), else the one last looked at, else the newest.

    The address always names the chosen run, so that it can be passed on.
    """
    by_id = {run.id: run for run in runs}
    asked = st.query_params.get("run")
    matching = [identifier for identifier in by_id if asked and identifier.startswith(asked)]
    if asked and len(matching) != 1:
        st.warning("The address names no run of this history, or several; showing another.")
        st.text(line(asked))
    remembered = st.session_state.get("last_run")
    chosen = matching[0] if len(matching) == 1 else (remembered if remembered in by_id else runs[0].id)
    st.session_state[key] = chosen

    def follow() -> None:
        st.query_params["run"] = st.session_state[key]

    identifier = st.selectbox("Run", list(by_id), key=key, format_func=lambda i: run_label(by_id[i]), on_change=follow)
    st.query_params["run"] = identifier
    st.session_state["last_run"] = identifier
    return by_id[identifier]


def page_of(rows: Sequence[Any], per_page: int, key: str) -> Sequence[Any]:
    """The rows of one page, with a field to turn pages where there are several."""
    n_pages = max(1, -(-len(rows) // per_page))
    if n_pages == 1:
        return rows
    # a filter that shortens the list must not leave the field beyond its end
    st.session_state[key] = min(max(1, st.session_state.get(key, 1)), n_pages)
    number = st.number_input(f"Page of {n_pages} ({len(rows)} in all)", 1, n_pages, key=key, width=220)
    return rows[(number - 1) * per_page : number * per_page]


def plain_table(rows: Sequence[dict[str, str]], alt: str) -> None:
    """A table of plain strings on a canvas; nothing in it is read as markup."""
    cells = [{name: line(value) for name, value in row.items()} for row in rows]
    height = "content" if len(rows) <= ROWS_SHOWN_WHOLE else "auto"
    st.dataframe(cells, hide_index=True, height=height, alt=alt)
