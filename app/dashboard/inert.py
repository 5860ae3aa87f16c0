"""Text that a model, an engine or a person wrote, made safe to show; it never reaches a call that renders markup."""

import re

from q36eval.reports.text import plain

MAX_BLOCK_CHARACTERS = 20_000

_HOSTILE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, except tab and line feed
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible and bidirectional marks reorder what one reads
    "\ufffe\uffff\ud800-\udfff"  # cannot travel to a browser as UTF-8
    "]"
)


def line(text: str) -> str:
    """One line without control or bidirectional characters (shown as U+FFFD), cut at a readable length."""
    return plain(text)


def block(text: str) -> str:
    """Several lines without control or bidirectional characters (shown as U+FFFD); tabs and line feeds stay."""
    cleaned = _HOSTILE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
    if len(cleaned) <= MAX_BLOCK_CHARACTERS:
        return cleaned
    return f"{cleaned[:MAX_BLOCK_CHARACTERS]}\n[cut here: {len(cleaned)} characters in all]"


_MARKUP = re.compile(r"([!-/:-@\[-`{-~])")


def label(text: str) -> str:
    """A line for a label, where Streamlit reads Markdown: every sign that could be some is escaped."""
    return _MARKUP.sub(r"\\\1", line(text))


def figure_text(text: str) -> str:
    """A line for a chart, where Plotly would read tags and `$` formulas."""
    safe = line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return safe.replace("$", "\N{FULLWIDTH DOLLAR SIGN}")
