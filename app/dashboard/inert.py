"""Text that a model, an engine or a person wrote, made safe to show; it never reaches a call that renders markup."""

import re

from q36eval.reports.text import block, plain

__all__ = ["block", "figure_text", "label", "line", "name"]


def line(text: str) -> str:
    """One line without control or bidirectional characters (shown as U+FFFD), cut at a readable length."""
    return plain(text)


LONGEST_NAME = 48
_INVISIBLE_SPACE = re.compile(r"\s")


def name(text: str) -> str:
    """A name among our own words: none of it can be taken for them, and it is not longer than a name."""
    shown = plain(_INVISIBLE_SPACE.sub("\N{OPEN BOX}", text), LONGEST_NAME)
    return shown or "\N{OPEN BOX}"


_MARKUP = re.compile(r"([!-/:-@\[-`{-~])")


def label(text: str) -> str:
    """A line for a label, where Streamlit reads Markdown: every sign that could be some is escaped."""
    return _MARKUP.sub(r"\\\1", line(text))


def figure_text(text: str) -> str:
    """A line for a chart, where Plotly would read tags and `$` formulas."""
    safe = line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("$", "\N{FULLWIDTH DOLLAR SIGN}")
