"""What is shown, as files: every table as CSV, every chart as PNG or SVG drawn by the browser itself."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from functools import partial

import plotly.graph_objects as go
import streamlit as st

from q36eval.app.dashboard.drawing.parts import plain_table
from q36eval.app.dashboard.inert import line

FORMATS = ("PNG", "SVG")
FORMAT_KEY = "chart_format"

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
    """A file's name of these parts, without what a file system or a shell would read otherwise."""
    return "-".join(cleaned for part in parts if (cleaned := _UNSAFE_IN_NAMES.sub("-", part).strip("-.")))


def table(rows: Sequence[dict[str, str]], alt: str, name: str) -> None:
    """A plain table with a button that saves all of it as CSV; `name` is that of the file."""
    plain_table(rows, alt)
    csv_button(rows, alt, name)


def csv_button(rows: Sequence[Mapping[str, str]], alt: str, name: str) -> None:
    """Saves rows as CSV; they are only written out when somebody presses it."""
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


def choose_format() -> None:
    """Which kind of file the camera of every chart saves; one choice for all pages."""
    st.session_state[FORMAT_KEY] = st.session_state.get(FORMAT_KEY) or FORMATS[0]
    with st.sidebar:
        st.segmented_control("The camera of a chart saves", FORMATS, key=FORMAT_KEY, width="stretch")


def chart(figure: go.Figure, alt: str, name: str) -> None:
    """A chart whose camera button saves it, as it is drawn, in the chosen format; `name` is that of the file."""
    image = {
        "format": (st.session_state.get(FORMAT_KEY) or FORMATS[0]).lower(),
        "filename": file_name(name),
        "scale": 2,
    }
    config = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [["toImage"]]}
    st.plotly_chart(figure, key=f"chart {name}", alt=alt, config=config | {"toImageButtonOptions": image})
