"""Text that a model, an engine or a person wrote, made safe to show; it never reaches a call that renders markup."""

import re

from q36eval.inert_text import MAX_CHARACTERS, block, name, plain

__all__ = ["block", "figure_text", "label", "line", "name"]


def line(text: str, most: int = MAX_CHARACTERS) -> str:
    """One line without control or bidirectional characters (shown as U+FFFD), cut at a readable length."""
    return plain(text, most)


_MARKUP = re.compile(r"([!-/:-@\[-`{-~])")


def label(text: str) -> str:
    """A line for a label, where Streamlit reads Markdown: every sign that could be some is escaped."""
    return _MARKUP.sub(r"\\\1", line(text))


def figure_text(text: str) -> str:
    """A line for a chart, where Plotly would read tags and `$` formulas."""
    safe = line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("$", "\N{FULLWIDTH DOLLAR SIGN}")
