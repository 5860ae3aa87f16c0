"""Pieces that several pages draw: headings, choices that an address may make, badges, tables and charts."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import plotly.graph_objects as go
import streamlit as st

from q36eval.app.dashboard.drawing.tables import Plot, table_html
from q36eval.app.dashboard.escape import label, line
from q36eval.app.dashboard.history_reader import Reader
from q36eval.app.dashboard.launch_options import Started
from q36eval.app.dashboard.models.run import summary
from q36eval.app.dashboard.verdict_style import AXES, look_of
from q36eval.errors import UsageError
from q36eval.gate.report import CriterionVerdict
from q36eval.history import BranchKey, RunFilter, RunRecord, RunState, RunSummary
from q36eval.metrics import ALL
from q36eval.records import ProbeName
from q36eval.reports.next_step import branch_option

RUNS_OFFERED = 50
"""The newest runs of a branch that are offered to choose from; the address reaches every one."""


FIRST_COMMAND = "q36eval gate --branch fp8-head"
_PAGE = "page_of_the_tab"
_TITLED = "page_titled"


def page_head(page: str, *, titled: bool = True) -> None:
    """The heading of a page, and the title of the browser's tab; every page begins with it. A page that is not `titled`
    draws a heading itself, once it knows its subject."""
    st.session_state[_PAGE], st.session_state[_TITLED] = page, titled
    name_tab()
    if titled:
        st.title(page, anchor=False)


def name_tab(*of: str) -> None:
    """Name in the browser's tab the subject of the page: a branch, a run. Names are text there, never markup."""
    words = [st.session_state.get(_PAGE, ""), *map(line, of), "q36eval"]
    st.set_page_config(page_title=" · ".join(dict.fromkeys(filter(None, words))))


def reader_or_stop(page: str, *, titled: bool = True) -> Reader:
    """The head of a page and its history; without any run, the command that makes one, and the page ends there."""
    page_head(page, titled=titled)
    reader = Reader(Started.of().source)
    if not reader.exists or not reader.history.summaries(limit=1):
        if not st.session_state[_TITLED]:
            st.title(st.session_state[_PAGE], anchor=False)
        st.info("This history holds no run yet. This gate judges a branch of the sandbox:")
        copy_box(FIRST_COMMAND)
        st.stop()
    return reader


def probe_page(probe: str) -> tuple[Reader, RunRecord]:
    """The beginning of a probe's page: the history, and the run that is chosen there."""
    reader = reader_or_stop(probe)
    run = choose_run(reader, f"{probe.lower()}_run")
    look = look_of(run.verdict)
    st.badge(look.label, color=look.colour)
    return reader, run


def run_heading(run: RunRecord) -> None:
    """Verdict, branch and policy of the run that the page is about; below them its summary."""
    look, policy = look_of(run.verdict), "" if run.report is None else f", policy {run.report.policy}"
    waived = " with waivers" if run.report is not None and run.report.waived else ""
    st.title(f":{look.colour}[{look.label}]{waived} · {label(run.branch + policy)}", anchor=False)
    st.caption(label(summary(run, datetime.now(UTC))))


def run_label(run: RunSummary) -> str:
    """The line of a run in a choice among those of its branch."""
    verdict = look_of(run.verdict).label if run.verdict is not None else str(run.state)
    return line(f"{run.started:%Y-%m-%d %H:%M} UTC · {verdict} · {run.id}")


def branch_label(key: BranchKey) -> str:
    """The line of a branch in a choice."""
    return line(f"{key[1]} (family {key[0]})")


def choose_run(reader: Reader, key: str, parameter: str = "run", label: str = "") -> RunRecord:
    """A run chosen by `?run=ID` (a unique prefix will do), else the one last looked at, else the newest gate.

    The newest runs of one branch are offered; the address always names the chosen one, so that it can be passed on.
    `parameter` is its name there, and `label` goes before those of the two fields.
    """
    chosen = asked_run(reader, parameter)
    remembered = _run_asked_for(reader, st.session_state.get(f"last_{parameter}"))
    newest = reader.history.summaries(limit=1)[0].id  # without any gate
    chosen = chosen or remembered or _run_asked_for(reader, "latest") or reader.history.get_run(newest)
    keys = sorted((of.family, of.branch) for of in reader.history.branches())
    st.session_state[f"{key}_branch"], st.session_state[key] = (chosen.family, chosen.branch), chosen.id

    def follow_branch() -> None:
        st.query_params[parameter] = newest_finished(reader, st.session_state[f"{key}_branch"]).id

    def follow() -> None:
        st.query_params[parameter] = st.session_state[key]

    left, right = st.columns((1, 2))
    left.selectbox(f"{label}Branch", keys, key=f"{key}_branch", format_func=branch_label, on_change=follow_branch)
    offered = {run.id: run_label(run) for run in newest_runs(reader, (chosen.family, chosen.branch))}
    offered.setdefault(chosen.id, line(f"{chosen.started:%Y-%m-%d %H:%M} UTC · {chosen.id}"))
    right.selectbox(f"{label}Run", list(offered), key=key, format_func=offered.__getitem__, on_change=follow)
    st.query_params[parameter] = chosen.id
    st.session_state[f"last_{parameter}"] = chosen.id
    name_tab(chosen.branch, chosen.id)
    st.session_state["branch_last"] = (chosen.family, chosen.branch)  # the target of the sidebar's link to its branch
    return chosen


def asked_run(reader: Reader, parameter: str = "run") -> RunRecord | None:
    """The run in this parameter of the address; the page ends if it is unknown or ambiguous.

    Call this where the message is visible: not in an expander, which may be closed.
    """
    named = st.query_params.get(parameter)
    chosen = _run_asked_for(reader, named)
    if named and chosen is None:
        stop_at_dead_link("run", named)
    return chosen


def newest_finished(reader: Reader, key: BranchKey) -> RunSummary:
    """The newest finished run of a branch; without one, the newest."""
    wanted = RunFilter(family=key[0], branch=key[1], state=RunState.FINISHED)
    return (reader.history.summaries(wanted, limit=1) or newest_runs(reader, key, 1))[0]


def stop_at_dead_link(kind: str, named: str) -> NoReturn:
    """Report that the address names nothing here, and end the page: another subject could be mistaken for it."""
    st.error(f"The address names no {kind} of this history, or several. Nothing is shown.")
    st.text(line(named))
    st.page_link("views/overview.py", label="All branches", icon=":material/grid_view:")
    st.stop()
    raise AssertionError("a page that was stopped went on")


def named_branch(keys: Sequence[BranchKey]) -> BranchKey | None:
    """The branch in the address by `branch` and `family`, or by the first if only one family has it; None without one.
    The page ends if it is unknown, or in several families."""
    if not {"branch", "family"} & set(st.query_params):
        return None
    family, branch = st.query_params.get("family"), st.query_params.get("branch")
    fit = [key for key in keys if family in (None, key[0]) and branch in (None, key[1])]
    if len(fit) != 1:
        stop_at_dead_link("branch", f"{branch or 'not given'} (family {family or 'not given'})")
    return fit[0]


def choose_branch(reader: Reader) -> BranchKey:
    """A branch chosen by the address, else the one last looked at, else the first; the address then names it."""
    keys = sorted((of.family, of.branch) for of in reader.history.branches())
    chosen = named_branch(keys) or st.session_state.get("branch_last", keys[0])
    st.session_state["branch_branch"] = chosen if chosen in keys else keys[0]

    def follow() -> None:
        st.query_params["family"], st.query_params["branch"] = st.session_state["branch_branch"]

    key: BranchKey = st.selectbox("Branch", keys, key="branch_branch", format_func=branch_label, on_change=follow)
    st.query_params["family"], st.query_params["branch"] = key
    st.session_state["branch_last"] = key
    name_tab(key[1], f"family {key[0]}")
    return key


def newest_runs(reader: Reader, key: BranchKey, limit: int = RUNS_OFFERED) -> list[RunSummary]:
    """The newest runs of a branch as lines, newest first."""
    return reader.history.summaries(RunFilter(family=key[0], branch=key[1]), limit=limit)


def _run_asked_for(reader: Reader, named: str | None) -> RunRecord | None:
    try:
        return reader.history.get_run(named) if named else None
    except UsageError:
        return None


def page_of(rows: Sequence[Any], per_page: int, key: str) -> Sequence[Any]:
    """The rows of one page, with a field to turn pages where there are several. Other rows begin at the first page."""
    n_pages = max(1, -(-len(rows) // per_page))
    page = 1
    if n_pages > 1:
        page = st.number_input(
            f"Page of {n_pages} ({len(rows):,} in all)", 1, n_pages, width=220, key=f"{key} of {n_pages}"
        )
    return rows[(page - 1) * per_page : page * per_page]


def choice(title: str, name: str, options: Sequence[str]) -> str:
    """A field that chooses one of the options, or `ALL`; the address keeps it by its name.

    If the address asks for something else, that is offered as well: a list of what fits it is empty, not whole.
    """
    asked = st.query_params.get(name, ALL)
    offered = list(dict.fromkeys((ALL, *options, line(asked))))
    chosen: str = st.selectbox(title, offered, format_func=line, key=name, bind="query-params", width=200)
    return chosen


def nothing_measured(sentence: str, reader: Reader, run: RunRecord, command: str) -> None:
    """Why a page is empty, and the command that measures its content, if the checkpoint's files allow it."""
    st.warning(sentence)
    for failure in reader.history.failures(run.id):
        if failure.probe == command:
            st.text(line(failure.sentence))
    criteria = () if run.report is None else run.report.criteria
    if run.report is not None and not any(one.probe == command for one in criteria):
        st.text(line(f"The policy {run.report.policy} has no criterion for it."))
    if any(one.probe is ProbeName.WEIGHTS and one.verdict is CriterionVerdict.FAIL for one in criteria):
        st.page_link("views/run.py", label="The files themselves fail: see what to mend.", query_params={"run": run.id})
        return
    st.caption("This measures it:")
    copy_box(f"q36eval {command} {branch_option(run)}")


def copy_box(text: str) -> None:
    """Text to copy, complete at any width."""
    st.code(line(text), language=None, wrap_lines=True)


_FIGURE = re.compile(r"[-+0-9.,eE %\[\]()]*")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_UNSAFE_IN_NAMES = re.compile(r"[^\w.-]+")


def csv_bytes(rows: Sequence[Mapping[str, str]]) -> bytes:
    """The rows as CSV in UTF-8, marked as such for spreadsheets; columns as in the first row that has each.

    A cell that a spreadsheet would run as a formula is quoted with an apostrophe: what a model said ends up here.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8-sig")


def _cell(value: str) -> str:
    safe = line(value)
    return f"'{safe}" if safe.startswith(_FORMULA) and _FIGURE.fullmatch(safe) is None else safe


def file_name(*parts: str) -> str:
    """A file name made of these parts, without special characters of file systems or shells."""
    return "-".join(cleaned for part in parts if (cleaned := _UNSAFE_IN_NAMES.sub("-", part).strip("-.")))


MOST_ROWS, MOST_COLUMNS = 100, 11
"""The limits of a table on the page; a larger one scrolls in a box with sorting and search."""


def table(rows: Sequence[Mapping[str, str]], alt: str, name: str, plot: Plot | None = None) -> None:
    """A table of plain text with a button that saves all of it as CSV; `name` is that of the file, and a `plot` stands
    in its second column."""
    if plot is not None or (len(rows) <= MOST_ROWS and max(map(len, rows), default=0) <= MOST_COLUMNS):
        st.html(table_html(rows, alt, plot))
    else:
        cells = [{line(column): line(value) for column, value in row.items()} for row in rows]
        st.dataframe(cells, hide_index=True, alt=line(alt))
    csv_button(rows, alt, name)


def csv_button(rows: Sequence[Mapping[str, str]], alt: str, name: str) -> None:
    """Saves rows as CSV, which is only made when somebody presses the button."""
    with st.container(horizontal=True, horizontal_alignment="right"):
        st.download_button(
            "CSV",
            partial(csv_bytes, rows),
            f"{file_name(name)}.csv",
            "text/csv",
            key=f"csv {name}",
            help=f"Save as CSV: {alt}",
            on_click="ignore",
            type="tertiary",
            icon=":material/download:",
        )


def chart(figure: go.Figure, alt: str, name: str) -> None:
    """A chart, which its own toolbar saves as SVG; `name` is that of the file, `alt` describes the chart in words."""
    colour = AXES.get(st.context.theme.type or "light", AXES["light"])
    figure.update_xaxes(tickfont_color=colour, title_font_color=colour)
    figure.update_yaxes(tickfont_color=colour, title_font_color=colour)
    saved = {"format": "svg", "filename": file_name(name)}
    config = {"displaylogo": False, "modeBarButtons": [["toImage"]], "toImageButtonOptions": saved}
    st.plotly_chart(figure, alt=line(alt), key=f"chart {name}", config=config)
